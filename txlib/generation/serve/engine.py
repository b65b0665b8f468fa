"""Many texts at once: the batch is put together anew at each step, so that none waits for the longest."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from txlib.attention import causal
from txlib.attention.paged import MEMORIES, PagedDecoderCache, PagedStep
from txlib.generation.config import GenerationConfig
from txlib.generation.prompts import check_lists, end_tokens, without_end
from txlib.generation.sampling import check_at_least
from txlib.generation.serve.blocks import BlockPool
from txlib.generation.serve.check import check_servable
from txlib.generation.speculative import count

CAUSAL = causal()


class QueueFull(ValueError):
    """So many requests are waiting that the engine takes no more."""


@dataclass(eq=False)
class Request:
    """A text that is being continued.

    ids: its tokens, of which the first `prompt_length` are the prompt's.
    table: its blocks in the cache, with the keys and values of its first `read` tokens, `reused` of them found there.
    names: of its full blocks; see `BlockPool`.
    finished: why it has ended: "stop", "length", "cancelled" or "error"; None: it has not.
    """

    ids: list[int]
    prompt_length: int
    config: GenerationConfig
    ends: tuple[int, ...]
    generator: torch.Generator
    listen: Callable[[int | None], None] = lambda token: None
    table: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    read: int = 0
    reused: int = 0
    finished: str | None = None

    @property
    def unread(self) -> int:
        """Number of tokens that the model has not read: at first the prompt, later one in each step."""
        return len(self.ids) - self.read

    @property
    def written(self) -> list[int]:
        """The new tokens, without what ended them."""
        ends = [*([end] for end in self.ends), *map(list, self.config.stop)]
        return without_end(self.ids[self.prompt_length :], ends)

    def name(self, index: int, size: int) -> bytes:
        """Return the name of a full block: a hash of its tokens and of all before them."""
        while len(self.names) <= index:
            start = len(self.names) * size
            tokens = array("q", self.ids[start : start + size]).tobytes()
            self.names.append(sha256(b"".join(self.names[-1:]) + tokens).digest())
        return self.names[index]

    def append(self, logits: Float[Tensor, "1 vocab"], likeliest: int) -> None:
        """Choose the next token as `generate` does, and note whether the text has ended."""
        config, new = self.config, self.ids[self.prompt_length :]
        seen = written = None
        if config.has_penalties:
            seen, written = (count(ids, logits)[None] for ids in (self.ids, new))
            seen = seen > 0
        try:
            drawn = config.has_penalties or config.do_sample and config.temperature > 0
            token = int(config.next_token(logits, seen, written, self.generator)) if drawn else likeliest
        except RuntimeError:  # not a number, from penalties beyond all measure
            self.finished = "error"
            return
        self.ids.append(token)
        new.append(token)
        if token in self.ends or any(new[-len(stop) :] == list(stop) for stop in config.stop):
            self.finished = "stop"
        elif len(new) == config.max_new_tokens:
            self.finished = "length"
        self.listen(token)


class Engine:
    """Continues texts, of which some come and some end at each step: continuous batching (Yu et al. 2022, §3.1).

    A step is one call of the model. It reads the last token of each text that writes, and pieces of other texts'
    prompts (chunked prefill; Agrawal et al. 2023). Keys and values are in a paged cache (Kwon et al. 2023). Each text
    gets the tokens that `generate` gives it alone. Other threads may call `submit` and `cancel` while a step runs.

    Args:
        model: a decoder with softmax attention, such as a GPT.
        cache_tokens: of how many tokens the cache holds keys and values, for all texts together.
        block_size: tokens in a block.
        max_running, max_waiting: most texts in a step, and in the queue.
        step_tokens: most tokens that a step reads.
        share_prefixes: whether texts that begin alike share blocks.
        kv_cache_dtype: "int8" rounds keys and values to 8 bits, with a step for each head and token; so the tokens may
            differ from those of `generate`. "auto" keeps the model's type.

    Raises:
        ValueError: for a model that cannot be served, an unknown type, and numbers that are too small.
    """

    def __init__(
        self,
        model: Any,
        *,
        cache_tokens: int = 8192,
        block_size: int = 16,
        max_running: int = 32,
        max_waiting: int = 256,
        step_tokens: int = 256,
        share_prefixes: bool = True,
        kv_cache_dtype: str = "auto",
    ):
        check_servable(model)
        numbers = {"block_size": block_size, "max_running": max_running, "max_waiting": max_waiting}
        for name, value in (numbers | {"step_tokens": step_tokens}).items():
            check_at_least(name, value, 1)
        check_at_least("cache_tokens", cache_tokens, block_size)
        if kv_cache_dtype not in MEMORIES:
            raise ValueError(f"kv_cache_dtype={kv_cache_dtype!r} is unknown; choose one of {', '.join(MEMORIES)}")
        blocks, kind = cache_tokens // block_size, MEMORIES[kv_cache_dtype]
        self.model, self.device, self.block_size = model.eval(), next(model.parameters()).device, block_size
        self.max_running, self.max_waiting, self.step_tokens = max_running, max_waiting, step_tokens
        self.share_prefixes, self.pool = share_prefixes, BlockPool(blocks)
        self.cache = PagedDecoderCache(len(model.decoder.layers), blocks, block_size, kind)
        self.running: list[Request] = []  # in the order in which they came
        self.waiting: deque[Request] = deque()
        self.steps = self.tokens_read = self.tokens_written = self.preemptions = 0

    def submit(self, input_ids: Sequence[int], config: GenerationConfig | None = None, **options: Any) -> Request:
        """Add a text to the queue.

        Args:
            input_ids: the prompt's tokens.
            config: how to choose tokens and when to stop.
            options: of `GenerationConfig`, to change some of the config's; and `listen`, which the thread that steps
                calls with each new token and, when the text has ended, with None.

        Raises:
            QueueFull: too many texts are waiting.
            ValueError: for a prompt that is empty, or too long for the context or the cache.
        """
        listening = {"listen": options.pop("listen")} if "listen" in options else {}
        config = GenerationConfig.of(config, options)
        self.check_request(input_ids, config)
        if len(self.waiting) >= self.max_waiting:
            raise QueueFull(f"{self.max_waiting} requests are waiting already, which is the limit; try again later")
        generator, ends = torch.Generator(self.device), end_tokens(self.model.config, config.eos_id)
        generator.seed() if config.seed is None else generator.manual_seed(config.seed)
        request = Request(list(input_ids), len(input_ids), config, ends, generator, **listening)
        self.waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a text early; the next step frees its blocks."""
        request.finished = request.finished or "cancelled"

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return bool(self.running or self.waiting)

    def run(self) -> None:
        """Step until all texts have ended."""
        while self.busy:
            self.step()

    @torch.no_grad()
    def step(self) -> None:
        """Put a batch together, let the model read it, and add a token to each text that is read to its end.

        If the model fails, this step's texts end with "error".
        """
        plan = self.schedule()
        if not plan:
            return
        try:
            logits = self.read(plan)  # (text, vocab)
        except Exception:
            self.pool.forget()  # blocks that were to be filled
            for request in plan:
                request.finished = "error"
            self.remove_finished()
            raise
        for request, new in plan.items():
            request.read += new
        complete, likeliest = [request for request in plan if not request.unread], logits.argmax(dim=-1).tolist()
        for row, request in enumerate(complete):
            if request.finished is None:
                request.append(logits[row : row + 1], likeliest[row])
        self.steps += 1
        self.tokens_read, self.tokens_written = (
            self.tokens_read + sum(plan.values()),
            self.tokens_written + len(complete),
        )
        self.remove_finished()

    def schedule(self) -> dict[Request, int]:
        """Return how many tokens of which texts the next step reads.

        Texts that write come first, then prompts that have begun, then new ones, as far as the step's tokens and the
        cache's blocks go. If a text needs a block and none is free, the text that came last goes back to the queue.
        """
        self.remove_finished()
        plan: dict[Request, int] = {}
        budget, preemptions = self.step_tokens, self.preemptions
        for request in sorted(self.running, key=lambda request: request.unread > 1):
            new = min(request.unread, budget)
            while new and request in self.running and not self.reserve(request, new):
                self.preempt(next(last for last in reversed(self.running) if last not in plan))
            if new and request in self.running:
                plan[request], budget = new, budget - new
        while self.waiting and budget and len(self.running) < self.max_running and preemptions == self.preemptions:
            request = self.waiting[0]
            self.reuse(request)
            new = min(request.unread, budget)
            if not self.has_room(request) or not self.reserve(request, new):
                self.release(request)
                break
            self.running.append(self.waiting.popleft())
            plan[request], budget = new, budget - new
        return plan

    def reuse(self, request: Request) -> None:
        """Begin a table with blocks that hold the text's first tokens; its last token is read in any case."""
        for index in range((len(request.ids) - 1) // self.block_size if self.share_prefixes else 0):
            block = self.pool.share(request.name(index, self.block_size))
            if block is None:
                break
            request.table.append(block)
        request.read = request.reused = len(request.table) * self.block_size

    def has_room(self, request: Request) -> bool:
        """Return whether all of a new text fits, and each running one may take a block more."""
        needed = -(-len(request.ids) // self.block_size) - len(request.table)
        return not self.running or needed + len(self.running) <= len(self.pool.free)

    def reserve(self, request: Request, new: int) -> bool:
        """Take the blocks that a text needs for new tokens, if so many are free, and name those that they fill."""
        end = request.read + new
        needed = -(-end // self.block_size) - len(request.table)
        if needed > len(self.pool.free):
            return False
        request.table += [self.pool.take() for _ in range(needed)]
        for index in range(request.read // self.block_size, end // self.block_size if self.share_prefixes else 0):
            self.pool.remember(request.table[index], request.name(index, self.block_size))
        return True

    def preempt(self, request: Request) -> None:
        """Put a running text back to the front of the queue; its tokens will be read again."""
        self.running.remove(request)
        self.release(request)
        self.waiting.appendleft(request)
        self.preemptions += 1

    def release(self, request: Request) -> None:
        """Give a text's blocks back."""
        self.pool.release(request.table)
        request.read = 0

    def remove_finished(self) -> None:
        """Forget the texts that have ended."""
        for request in [request for request in [*self.running, *self.waiting] if request.finished]:
            (self.running if request in self.running else self.waiting).remove(request)
            self.release(request)
            request.listen(None)

    def read(self, plan: dict[Request, int]) -> Float[Tensor, "text vocab"]:
        """Let the model read the tokens of a plan; return the logits after each text that is then read to its end."""
        ids = [token for request, new in plan.items() for token in request.ids[request.read : request.read + new]]
        texts = [(request.table, request.read, new) for request, new in plan.items()]
        self.cache.begin(step := PagedStep(texts, self.block_size, self.device))
        x = self.model.embed(torch.tensor([ids], device=self.device), position_ids=step.positions[None])
        hidden = self.model.decoder(x, CAUSAL, cache=self.cache)[0]  # (token, d_model)
        last = torch.tensor(list(plan.values())).cumsum(dim=0) - 1
        complete = torch.tensor([new == request.unread for request, new in plan.items()])
        return self.model.logits(hidden[last[complete].to(self.device)]).float()

    def stats(self) -> dict[str, Any]:
        """Return what can be drawn: who has which block, and which part of the taken memory holds nothing."""
        size, texts, filled = self.block_size, list[dict[str, Any]](), dict[int, int]()
        for request in list(self.running):
            most = request.prompt_length + request.config.max_new_tokens
            texts.append({"id": id(request) >> 4, "table": list(request.table), "read": request.read, "most": most})
            texts[-1] |= {"prompt": request.prompt_length, "length": len(request.ids)}
            filled |= {b: min(size, max(0, request.read - i * size)) for i, b in enumerate(request.table)}
        reserved = sum(text["most"] for text in texts)
        return {
            "references": list(self.pool.references),
            "remembered": list(self.pool.names),
            "texts": texts,
            "waiting": len(self.waiting),
            "waste": 1 - sum(filled.values()) / (size * len(filled)) if filled else 0.0,
            "waste_if_reserved": 1 - sum(text["read"] for text in texts) / reserved if texts else 0.0,
            "longest": self.model.config.max_length,
            "steps": self.steps,
            "tokens_written": self.tokens_written,
            "preemptions": self.preemptions,
        }

    def check_request(self, input_ids: Sequence[int], config: GenerationConfig) -> None:
        """Refuse a request that can never be answered."""
        check_lists("input_ids", [input_ids])
        check_lists("stop", config.stop)
        length, most, vocab_size = len(input_ids), config.max_new_tokens, self.model.config.vocab_size
        if not length:
            raise ValueError("the prompt is empty; give at least one token, such as the one that begins a text")
        if not 0 <= min(input_ids) <= max(input_ids) < vocab_size:
            raise ValueError(f"the prompt holds a token beyond vocab_size={vocab_size}; take the model's tokenizer")
        if config.num_beams > 1 or not config.use_cache:
            raise ValueError("the engine knows neither num_beams nor use_cache; leave them out, or use generate")
        room = len(self.pool.references) * self.block_size
        for what, limit in ("context", self.model.config.max_length), ("cache", room):
            if length + most > limit:
                raise ValueError(
                    f"the prompt has {length} tokens, and with max_new_tokens={most} the {what} of {limit} is too "
                    "short; shorten the prompt, or lower max_new_tokens"
                )
