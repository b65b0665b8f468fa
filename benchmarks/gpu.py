"""Compare training, attention and decoding on a GPU with peers, in turns, and report the fraction of the GPU's speed.

    python benchmarks/gpu.py [train] [attention] [translate] [decode] [--rounds 3] [--save]

Each case is saved as soon as it is measured, into a separate file. If one fails, its trace is printed, the others
are still measured, and the exit status is 1. The first calls compile: all four take a quarter of an hour, each a few
minutes.

train      a step of GPT-2 small (124 M weights), bf16, blocks compiled; against `transformers`' model, compiled whole
attention  causal, and in a window of 256: our Triton kernels against torch's flash kernel and FlexAttention, compiled
translate  a step of the paper's base Transformer against one made of `nn.Transformer`
decode     GPT-2 small generating one text and 64, against `transformers`; a growing cache, a static one, CUDA graphs

Operations are those of the model (see `txlib.training.profile`); the peak comes from a data sheet or a measured
product. Without a GPU it uses small models and no compilers, only to show that it runs: the numbers say nothing about a
GPU.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from compare import Row, in_turns, median, save, table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from txlib.attention import FlashAttention, Mask, causal, sliding_window
from txlib.data import collate
from txlib.devices import peak_flops
from txlib.generation import generate
from txlib.models import GPT, GPTConfig, Transformer
from txlib.models.sizes import GPT2, VASWANI
from txlib.recipes.language import window_loss
from txlib.recipes.translation import translation_loss
from txlib.training import optimizers, training_step
from txlib.training.blocks import compiled
from txlib.training.profile import StepFlops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"
AUTOCAST = partial(torch.autocast, DEVICE.type, torch.bfloat16)
Found = dict[str, list[float]]
PEAK, ROUNDS = 0.0, 3  # operations per second, and rounds: `main` says


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    gpt: GPTConfig
    rows: int  # texts of a batch in training
    length: int
    translator: Any
    sentences: int
    words: int
    lengths: tuple[int, ...]  # of attention
    tokens: int  # of an attention's batch
    heads: int
    widths: tuple[int, ...]  # of a head
    texts: tuple[int, ...]  # at a time in decoding
    prompt: int
    new_tokens: int
    steps: int  # timed together
    warmup: int


def sizes() -> Sizes:
    """Those for a GPU; without one, small ones."""
    if ON_GPU:
        return Sizes(
            GPT2["small"],
            *(32, 1024),
            VASWANI["base"],
            *(256, 64),
            *((1024, 4096, 16_384), 16_384, 16, (64, 128)),
            *((1, 64), 128, 128),
            *(10, 5),
        )
    small = {"d_model": 64, "heads": 4, "d_ff": 256}
    gpt = replace(GPT2["small"], vocab_size=512, layers=2, block=GPT2["small"].block.replace(**small))
    translator = replace(VASWANI["base"], vocab_size=512, encoder_layers=2, decoder_layers=2)
    translator = replace(translator, block=translator.block.replace(**small))
    return Sizes(gpt, 4, 64, translator, 8, 16, (256,), 256, 2, (32,), (1, 4), 16, 16, 2, 1)


SIZES = sizes()


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], times: int = SIZES.steps) -> float:
    """Of one of several calls, with all that they asked of the GPU."""
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - began) / times


def warmed_up(work: Callable[[], object]) -> Callable[[], object]:
    """The same work, done some times: compiled, tuned, in the caches."""
    for _ in range(SIZES.warmup):
        work()
    return work


def extra_memory(work: Callable[[], object]) -> float:
    """MB that a call takes at its peak; 0 where nobody counts."""
    if not ON_GPU:
        return 0.0
    wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def limited(peak: float, share: float | None) -> float | None:
    """A target as a share of the peak, in TFLOP/s; none without a GPU."""
    return share * peak / 1e12 if ON_GPU and share else None


def rates(
    name: str, flops: float, ways: dict[str, Callable[[], object]], goal: float | None
) -> tuple[list[Row], Found]:
    """TFLOP/s of the ways in turns, "ours" among them, and the memory of each."""
    memory = {way: extra_memory(warmed_up(work)) for way, work in ways.items()}
    rounds = {way: lambda work=work: flops / seconds(work) / 1e12 for way, work in ways.items()}
    measured = in_turns(rounds, ROUNDS, quiet=True)
    ours = median(measured["ours"])
    rows = []
    for way in (way for way in ways if way != "ours"):
        peer = median(measured[way])
        rows.append(Row(f"{name}, {way}", "TFLOP/s", peer, ours, limited(PEAK, goal), more_is_better=True))
        if ON_GPU:
            rows.append(Row(f"{name}, {way}", "MB", memory[way], memory["ours"]))
    each = ", ".join(f"{way} {median(values):.3g}" for way, values in measured.items())
    print(f"{name}: {each} TFLOP/s; ours is {1e12 * ours / PEAK:.0%} of the peak", flush=True)
    return rows, {f"{name}, {way}": values for way, values in measured.items()}


# The cases ------------------------------------------------------------------------------------------------------------


def peer_step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """What one writes by hand: autocast, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with AUTOCAST():
            total = loss()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_step(model: nn.Module, loss: Any, batch: Any) -> Callable[[], object]:
    """The step that `train` repeats, alone, so that it takes turns with the peer's."""
    optimizer = optimizers(model, lr=1e-4)
    return lambda: training_step(model, [batch], loss, optimizer, clip=1.0, autocast=AUTOCAST)


def as_gpt2(config: GPTConfig) -> GPT2LMHeadModel:
    """The same shape as `transformers` has it, without dropout."""
    block = config.block
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "eos_token_id": None, "bos_token_id": None}
    sizes = {
        "n_embd": block.d_model,
        "n_layer": config.layers,
        "n_head": block.attention.heads,
        "n_inner": block.ffn.d_ff,
    }
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=config.vocab_size, n_positions=config.max_length, **sizes, **still)
    ).to(DEVICE)


def without_dropout(config: Any) -> Any:
    return replace(config, block=config.block.replace(dropout=0.0, attention_dropout=0.0))


def train() -> tuple[list[Row], Found]:
    """llm.c does 400 TFLOP/s with a GPU whose peak is 989 (40 %)."""
    config = without_dropout(SIZES.gpt)
    windows = torch.randint(config.vocab_size, (SIZES.rows, SIZES.length + 1), device=DEVICE)
    ours, theirs = GPT(config).to(DEVICE).train(), as_gpt2(config).train()
    flops = StepFlops(ours, window_loss)(windows)
    assert flops is not None
    call = torch.compile(theirs) if ON_GPU else theirs
    with compiled(ours, ON_GPU):
        rows, measured = rates(
            "train GPT-2 small" if ON_GPU else "train a small GPT",
            flops,
            {
                "transformers": peer_step(theirs, lambda: call(windows[:, :-1], labels=windows[:, :-1]).loss),
                "ours": our_step(ours, window_loss, windows),
            },
            0.404,
        )
    for row in rows[:1]:
        per_token = windows[:, 1:].numel() / flops * 1e12
        rows.append(Row(row.what, "tokens/s", per_token * row.peer, per_token * row.ours, more_is_better=True))
    return rows, measured


class ByHand(nn.Module):
    """An encoder–decoder of `nn.Transformer`, with embeddings that are the output projection, too."""

    def __init__(self, config: Any):
        super().__init__()
        block = config.block
        self.embedding = nn.Embedding(config.vocab_size, block.d_model)
        self.transformer = nn.Transformer(
            block.d_model,
            block.attention.heads,
            config.encoder_layers,
            config.decoder_layers,
            block.ffn.d_ff,
            dropout=0.0,
            batch_first=True,
            norm_first=block.norm.placement == "pre",
        )

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        hidden = self.transformer(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device),
            tgt_is_causal=True,
        )
        logits = hidden @ self.embedding.weight.T
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)


def translate() -> tuple[list[Row], Found]:
    """Sentences of one length, so that nobody pads."""
    config = without_dropout(SIZES.translator)
    some = torch.randint(4, config.vocab_size, (2, SIZES.sentences, SIZES.words - 1)).tolist()
    batch = collate(list(zip(*some, strict=True)), 1, 2, 0).to(DEVICE)
    ours, theirs = Transformer(config).to(DEVICE).train(), ByHand(config).to(DEVICE).train()
    flops = StepFlops(ours, translation_loss)(batch)
    assert flops is not None
    call = torch.compile(theirs) if ON_GPU else theirs
    with compiled(ours, ON_GPU):
        return rates(
            "train the base Transformer" if ON_GPU else "train a small Transformer",
            flops,
            {
                "nn.Transformer": peer_step(
                    theirs, lambda: call(batch.input_ids, batch.decoder_input_ids, batch.labels)
                ),
                "ours": our_step(ours, translation_loss, batch),
            },
            0.4,
        )


def attention() -> tuple[list[Row], Found]:
    """Operations: those of the pairs that the mask allows, 2 · 2 · width for each, and 2.5 times as many backward."""
    rows: list[Row] = []
    measured: Found = {}
    for width in SIZES.widths:
        for length in SIZES.lengths:
            batch = max(1, SIZES.tokens // length)
            q, k, v = (
                torch.randn(batch, SIZES.heads, length, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
                for _ in range(3)
            )
            masks = {"causal": causal()}
            if length > 512:
                masks["window 256"] = causal() & sliding_window(255)
            for name, mask in masks.items():
                ways = {"ours": partial(FlashAttention(), q, k, v, mask), "torch's flash": partial(flash, q, k, v)}
                if ON_GPU:
                    ways["FlexAttention"] = flex(q, k, v, mask)
                operations = 4 * width * mask.pairs(length, length) * batch * SIZES.heads
                goal = {64: 380, 128: 480}[width] * 1e12 / PEAK if name == "causal" and ON_GPU else None
                title = f"{name}, n {length}, width {width}"
                for way, factor in ((torch.no_grad()(run), 1), (both, 3.5)):
                    passes = {each: partial(way, work) for each, work in ways.items()}
                    what = f"{title}, {'forward' if factor == 1 else 'with backward'}"
                    more, found = rates(what, factor * operations, passes, goal if factor == 1 else None)
                    rows += more
                    measured |= found
    return rows, measured


def run(work: Callable[[], Tensor]) -> Tensor:
    return work()


def both(work: Callable[[], Tensor]) -> None:
    out = work()
    out.backward(out.detach())


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal; where the mask is a window, it is what one would have to compute without knowing of windows."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = q.shape[2]
    near = mask != causal()

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= 255) if near else query >= key

    torch.compiler.reset()  # past eight masks and sizes it would no longer be compiled
    block_mask = create_block_mask(allowed, None, None, length, length, device=q.device, BLOCK_SIZE=128)
    return partial(torch.compile(flex_attention, dynamic=False), q, k, v, block_mask=block_mask)


def decode() -> tuple[list[Row], Found]:
    """The limit: all weights are read once for each token of a batch, and the memory's speed is measured."""
    rows: list[Row] = []
    measured: Found = {}
    config = without_dropout(SIZES.gpt)
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    torch.manual_seed(0)
    ours, theirs = GPT(config).to(DEVICE, dtype).eval(), as_gpt2(config).to(dtype).eval()
    bytes_of_weights = sum(weight.nbytes for weight in ours.parameters())
    speed = reading_speed()
    for texts in SIZES.texts:
        prompt = torch.randint(config.vocab_size, (texts, SIZES.prompt), device=DEVICE)
        length = {"max_new_tokens": SIZES.new_tokens, "min_new_tokens": SIZES.new_tokens}
        options = {**length, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
        ways: dict[str, Callable[[], object]] = {"transformers": partial(theirs.generate, prompt, **options)}
        if ON_GPU:
            ways["transformers, static and compiled"] = partial(
                theirs.generate, prompt, cache_implementation="static", **options
            )
        writer = StaticWriter(ours, prompt, SIZES.new_tokens)
        wanted = generate(ours, prompt, max_new_tokens=SIZES.new_tokens, eos_id=())
        if not ON_GPU and writer.write().tolist() != wanted:
            raise AssertionError("with the static cache other tokens are written")
        own: dict[str, Callable[[], object]] = {
            "a cache that grows": partial(generate, ours, prompt, max_new_tokens=SIZES.new_tokens, eos_id=()),
            "a static cache": writer.write,
        }
        if ON_GPU:
            graphs = StaticWriter(ours, prompt, SIZES.new_tokens)
            try:
                graphs.record()
                own["CUDA graphs"] = graphs.write
            except RuntimeError as error:
                print(f"no CUDA graphs: {error}")
            if "CUDA graphs" in own:
                # In 16 bits scores tie, so that even the same steps run twice may choose another token.
                tokens = writer.write()
                same, twice = ((other == tokens).float().mean() for other in (graphs.write(), writer.write()))
                print(f"{texts} at a time: graphs write {same:.1%} of the steps' tokens, a second run {twice:.1%}")
                if same < twice - 0.05:
                    raise AssertionError("CUDA graphs write other tokens")
        for work in (*ways.values(), *own.values()):
            warmed_up(work)
        timed = {
            name: lambda work=work: texts * SIZES.new_tokens / seconds(work, 1)  # noqa: B023
            for name, work in (ways | own).items()
        }
        found = in_turns(timed, ROUNDS, quiet=True)
        limit = texts * speed / bytes_of_weights
        for mine in own:
            for peer in ways:
                what = f"{texts} at a time, {peer} · {mine}"
                numbers = median(found[peer]), median(found[mine])
                rows.append(Row(what, "tokens/s", *numbers, more_is_better=True))
            share = median(found[mine]) / limit
            print(f"{texts} at a time, {mine}: {share:.0%} of the speed at which the weights can be read", flush=True)
        measured |= {f"{texts} at a time, {name}": values for name, values in found.items()}
    return rows, measured


def reading_speed() -> float:
    """Bytes per second that the device reads."""
    numbers = torch.ones(2**28 if ON_GPU else 2**24, device=DEVICE)
    numbers.sum()
    return numbers.nbytes / min(seconds(numbers.sum, 3) for _ in range(3))


class StaticWriter:
    """Greedy writing in memory that is taken once; on a GPU each position's step can be recorded as a graph.

    A recorded step reads and writes the places that it was recorded with: the token, the cache. The position is fixed
    in it, so there is a graph for each.
    """

    def __init__(self, model: GPT, prompt: Tensor, new_tokens: int):
        self.model, self.prompt, self.new_tokens = model, prompt, new_tokens
        self.cache = model.new_cache(prompt.shape[1] + new_tokens)
        self.token = prompt[:, -1:].clone()
        self.written = prompt.new_zeros(len(prompt), new_tokens)
        self.graphs: list[torch.cuda.CUDAGraph] = []

    @torch.no_grad()
    def advance(self, ids: Tensor, place: int) -> None:
        hidden = self.model.decode(ids, None, self.cache)[:, -1:]
        self.token.copy_(self.model.logits(hidden).argmax(dim=-1))
        self.written[:, place : place + 1] = self.token

    def steps(self) -> Iterator[Callable[[], None]]:
        """All but the first, which reads the prompt."""
        for place in range(1, self.new_tokens):
            yield partial(self.advance, self.token, place)

    def record(self) -> None:
        """Record every step but the first."""
        self.write()
        self.cache.crop(0)
        self.advance(self.prompt, 0)
        for step in self.steps():
            graph = torch.cuda.CUDAGraph()
            pool = self.graphs[0].pool() if self.graphs else None
            with torch.cuda.graph(graph, pool=pool):
                step()
            self.graphs.append(graph)

    def write(self) -> Tensor:
        """The new tokens, (batch, new_tokens)."""
        self.cache.crop(0)
        self.advance(self.prompt, 0)
        if self.graphs:
            for graph in self.graphs:
                graph.replay()
        else:
            for step in self.steps():
                step()
        return self.written.clone()


CASES = {"train": train, "attention": attention, "translate": translate, "decode": decode}


def main() -> None:
    """Print the tables."""
    global PEAK, ROUNDS
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all unless given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/gpu_CASE.json")
    arguments = parser.parse_args()
    ROUNDS = arguments.rounds
    torch.manual_seed(0)
    device = torch.cuda.get_device_name() if ON_GPU else "CPU"
    PEAK, source = peak_flops(DEVICE, torch.bfloat16)
    if not ON_GPU:
        print("There is no GPU here: small models, nothing compiled; the numbers say nothing about a GPU.")
    print(f"{device}: peak {PEAK / 1e12:.3g} TFLOP/s in bfloat16 ({source})", flush=True)
    about = {"device": device, "peak": PEAK, "peak_source": source}
    failed = []
    for name in arguments.cases or CASES:
        torch.compiler.reset()  # what the case before had compiled does not count against this one's limits
        try:
            rows, measured = CASES[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        print(table(rows), flush=True)
        if arguments.save:
            packages = ["torch", "triton", "transformers", "txlib-course"]
            print(save(f"gpu_{name}" if ON_GPU else f"gpu_on_a_cpu_{name}", rows, measured, packages, **about))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
