"""Serve 32 ragged requests one at a time, in static batches and continuously, with and without shared prefixes.

    python benchmarks/serve.py [--rounds 5] [--requests 32] [--threads 1] [--save]

A Llama with random weights (16 million parameters, float32) continues 32 prompts greedily. Each begins with the same 32
tokens, as behind a system prompt, and goes on with 4 to 28 of its own. The number of new tokens is geometric with mean
32, at most 160; no server knows it in advance. There is memory for the keys and values of 8 texts of full length, 220
tokens. Static batches reserve that for each text and so hold 8; `Engine` takes blocks as it goes. One row has a static
batch of all 32, with four times the memory. A static batch runs until its longest text ends.

The peers are transformers' continuous batching with the same weights, cache, block size and tokens per step, and, where
`llama-server` is on the PATH (benchmarks/README.md tells how to build it) and `gguf` is installed, llama.cpp's server
with weights and cache in float32 and the same memory. Its flash attention is off: with it, scores are off by
thousandths, and some texts differ.

No way takes fewer steps than its longest answer has tokens. The ratio of steps, static to continuous, is what the ratio
of speeds would be if all steps cost the same and prompts nothing; it is printed, and grows with `--requests`.
Ways take turns, and each round has other requests, for which all ways must write the same tokens. Speeds are new tokens
per second of CPU time (with more threads than one, by the wall clock), medians over rounds; a ratio is the median of
the rounds' ratios.
"""

import argparse
import atexit
import contextlib
import json
import logging
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.request import urlopen

import psutil
import torch
from compare import Row, in_turns, median, save, table
from transformers import ContinuousBatchingConfig, LlamaConfig, LlamaForCausalLM
from transformers import GenerationConfig as TheirConfig

from txlib import load_pretrained
from txlib.generation import Engine, generate

REQUESTS, SHARED, OWN, MEAN, MOST = 32, 32, (4, 28), 32, 160
FULL = SHARED + OWN[1] + MOST
FIT = 8  # whole texts in the cache
BLOCK, STEP_TOKENS, VOCAB_SIZE = 16, 256, 4096
SLOTS = 12  # of llama.cpp: faster than 8 or 16
LIMIT = 3.0  # continuous against static batches of the same memory


def workload(seed: int, requests: int = REQUESTS) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens each answer has."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(SHARED)]
    prompts = [shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(*OWN))] for _ in range(requests)]
    lengths = []
    for _ in range(requests):
        length = 1
        while length < MOST and rng.random() > 1 / MEAN:
            length += 1
        lengths.append(length)
    return prompts, lengths


def llama_cpp(model: LlamaForCausalLM, path: str) -> tuple[psutil.Popen, str]:
    """Write the weights to a file and start llama.cpp's server with them; return it and its address."""
    import gguf

    writer, config = gguf.GGUFWriter(path, "llama"), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("rwkv")  # a kind without an end of text
    writer.add_token_list([str(token) for token in range(VOCAB_SIZE)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates pairs of neighbors
            weight = weight.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names.get_name(name, [".weight"]), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:  # a port that is free
        port = listener.getsockname()[1]
    memory = f"--parallel {SLOTS} --ctx-size {FIT * FULL} --kv-unified"
    options = f"{memory} --threads {torch.get_num_threads()} --port {port}"
    exact = "--cache-type-k f32 --cache-type-v f32 --flash-attn off --log-disable"
    server = psutil.Popen(["llama-server", "--model", path, *options.split(), *exact.split()])
    atexit.register(server.terminate)
    while server.poll() is None:
        with contextlib.suppress(OSError):  # it doesn't listen yet, or still loads
            urlopen(f"http://127.0.0.1:{port}/health").close()
            return server, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    raise SystemExit("llama-server has stopped")


class Ways:
    """Each method serves one round's requests and returns what it wrote."""

    def __init__(self, theirs: LlamaForCausalLM, ours: torch.nn.Module, requests: int = REQUESTS):
        self.theirs, self.ours, self.requests = theirs, ours, requests
        self.engines: dict[bool, Engine] = {}
        self.ratios_of_steps: dict[bool, list[float]] = {False: [], True: []}
        self.written: dict[int, list[list[int]]] = {}  # by seed, what the first way wrote

    def speed(
        self, way: Callable[[], list[list[int]]], first_seed: int, clock: Callable[[], float]
    ) -> Callable[[], float]:
        """Return what measures a way's next round: tokens per second of this clock."""
        seeds = count(first_seed)

        def measure() -> float:
            seed = next(seeds)
            self.prompts, self.lengths = workload(seed, self.requests)
            began = clock()
            written = way()
            seconds = clock() - began
            if self.written.setdefault(seed, written) != written:
                raise SystemExit("two ways wrote different texts")
            return sum(self.lengths) / seconds

        return measure

    def alone(self) -> list[list[int]]:
        return [
            generate(self.ours, [prompt], max_new_tokens=length, eos_id=())[0]
            for prompt, length in zip(self.prompts, self.lengths, strict=True)
        ]

    def static(self, size: int) -> list[list[int]]:
        written: list[list[int]] = []
        for first in range(0, self.requests, size):
            prompts, lengths = self.prompts[first : first + size], self.lengths[first : first + size]
            texts = generate(self.ours, prompts, max_new_tokens=max(lengths), eos_id=())
            written += [text[:length] for text, length in zip(texts, lengths, strict=True)]
        return written

    def continuous(self, share: bool) -> list[list[int]]:
        sizes = {"cache_tokens": FIT * FULL, "block_size": BLOCK, "step_tokens": STEP_TOKENS}
        engine = Engine(self.ours, **sizes, max_running=self.requests, share_prefixes=share)
        self.engines[share] = engine
        requests = [
            engine.submit(prompt, max_new_tokens=length, eos_id=())
            for prompt, length in zip(self.prompts, self.lengths, strict=True)
        ]
        engine.run()
        static = sum(max(self.lengths[first : first + FIT]) for first in range(0, self.requests, FIT))
        self.ratios_of_steps[share].append(static / engine.steps)
        return [request.written for request in requests]

    def peer(self) -> list[list[int]]:
        config = ContinuousBatchingConfig(
            page_size=BLOCK,
            num_blocks=FIT * FULL // BLOCK,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=self.requests,
            use_async_batching=False,
            use_cuda_graph=False,
        )
        options = {"generation_config": TheirConfig(do_sample=False, eos_token_id=-1, max_new_tokens=MOST)}
        written: dict[str, list[int]] = {}
        with self.theirs.continuous_batching_context_manager(
            **options, continuous_batching_config=config, warmup=False
        ) as manager:
            names = [
                manager.add_request(prompt, max_new_tokens=length)
                for prompt, length in zip(self.prompts, self.lengths, strict=True)
            ]
            while len(written) < self.requests:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    written[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has stopped")
        return [written[name] for name in names]

    def llama_cpp(self, address: str) -> list[list[int]]:
        def ask(prompt: list[int], length: int) -> list[int]:
            request = {"prompt": prompt, "n_predict": length, "temperature": 0, "return_tokens": True}
            with urlopen(f"{address}/completion", json.dumps(request).encode()) as answer:
                return json.load(answer)["tokens"]

        with ThreadPoolExecutor(self.requests) as pool:  # each waits for its answer
            return list(pool.map(ask, self.prompts, self.lengths))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first round's requests")
    parser.add_argument("--save", action="store_true", help="write results/serve.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "intermediate_size": 1536}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, num_attention_heads=8, num_key_value_heads=4, **sizes)
    config.update({"max_position_embeddings": 1024, "eos_token_id": None, "bos_token_id": None})
    theirs = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_pretrained(folder)
        has_llama_cpp = shutil.which("llama-server") is not None
        if has_llama_cpp:
            server, address = llama_cpp(theirs, f"{folder}/model.gguf")
    ways = Ways(theirs, ours, arguments.requests)
    calls = {
        "one at a time": ways.alone,
        "static": lambda: ways.static(FIT),
        "static, 4 × memory": lambda: ways.static(FIT * 4),
        "continuous": lambda: ways.continuous(share=False),
        "shared prefixes": lambda: ways.continuous(share=True),
        "transformers": ways.peer,
    }
    one_thread = arguments.threads == 1
    clock = time.process_time if one_thread else time.perf_counter
    measures = {name: ways.speed(call, arguments.seed, clock) for name, call in calls.items()}
    if has_llama_cpp:
        its_clock = (lambda: sum(server.cpu_times()[:2])) if one_thread else clock
        measures["llama.cpp"] = ways.speed(lambda: ways.llama_cpp(address), arguments.seed, its_clock)
    measured = in_turns(measures, arguments.rounds)

    def row(name: str, peer: str, limit: float | None = None) -> Row:
        ratio = median([ours / theirs for ours, theirs in zip(measured[name], measured[peer], strict=True)])
        base = median(measured[peer])
        return Row(f"{name} / {peer}", "tokens/s", base, ratio * base, limit and limit * base, more_is_better=True)

    rows = [
        row("continuous", "static", LIMIT),
        row("shared prefixes", "static", LIMIT),
        row("continuous", "static, 4 × memory"),
        row("shared prefixes", "static, 4 × memory"),
        row("continuous", "one at a time"),
        row("shared prefixes", "transformers", 1.0),
    ]
    if has_llama_cpp:
        rows.append(row("shared prefixes", "llama.cpp"))
    print(table(rows))
    about = {
        name: {
            "steps": engine.steps,
            "tokens_read": engine.tokens_read,
            "preemptions": engine.preemptions,
            "ratio_of_steps": round(median(ways.ratios_of_steps[share]), 2),
        }
        for share, name in ((False, "continuous"), (True, "shared prefixes"))
        for engine in [ways.engines[share]]
    }
    print(about)
    if arguments.save:
        packages = ["torch", "transformers", "txlib-course"]
        print(
            save(
                "serve" if arguments.requests == REQUESTS else f"serve_{arguments.requests}",
                rows,
                measured,
                packages,
                threads=arguments.threads,
                requests=arguments.requests,
                engines=about,
            )
        )


if __name__ == "__main__":
    main()
