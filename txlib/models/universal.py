"""The Universal Transformer (Dehghani et al. 2019): one block, applied again and again, as long as a position needs.

Depth is recurrence here: all steps share their weights, so that the number of steps is no property of the parameters.
`Recurrence` stands where other models have a `Stack`; `UniversalTransformer` is the encoder–decoder made of two of
them, `UniversalGPT` the decoder made of one. The transition function is the feed-forward network, as in the paper's
translation model; its alternative, a separable convolution, is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from txlib.attention import BlockCache, DecoderCache, LayerContext, Mask, MaskLike, causal
from txlib.attention.masks.shared import sharing
from txlib.layers import (
    BlockConfig,
    MixtureConfig,
    SinusoidalConfig,
    TokenEmbedding,
    TransformerBlock,
    make_position,
    sinusoidal,
)
from txlib.layers.feedforward import dropout
from txlib.layers.position import check_even
from txlib.layers.position_config import check_two_sided
from txlib.models.gpt import CausalLMOutput, next_token_loss
from txlib.models.inputs import check_ids, real_tokens, together
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, auxiliary_loss, output
from txlib.models.stack import ModelConfig
from txlib.models.translation import Seq2SeqOutput, TranslationConfig, TranslationModel, check_source


@dataclass(frozen=True)
class UniversalConfig(ModelConfig):
    """What both models are told.

    Args:
        vocab_size: number of tokens; source and target share them.
        block: what the one block is made of. The paper's has `norm_first=False` and `position="sinusoidal"`.
        steps: how often the block is applied; with halting, at most so often. No parameter depends on it, so that
            trained weights can be loaded into a model of more steps.
        halting_threshold: a position halts when its halting probabilities sum to more (1 - ε of Graves 2016, §2; he
            has 0.99); None: all positions take all steps.
        halting_bias: where the halting unit's bias starts. The paper's 1 halts an untrained position at its second
            step; a negative one starts with many steps.
        halting_after: whether the halting unit reads the state that a step makes, as in Graves 2016, §2, and not what
            the step starts from, as in the paper's appendix C.
        step_signals: whether the signal of the step is added before it; without, no step knows its number.
        ponder_weight: what the mean ponder cost is multiplied by before it is added to the training loss (τ of Graves
            2016, §2.1).
        max_length: longest sequence that learned positions can hold.
        tie_embeddings: use the embedding's matrix as the output projection, too.
    """

    vocab_size: int
    block: BlockConfig
    steps: int = 6
    halting_threshold: float | None = None
    halting_bias: float = 1.0
    halting_after: bool = False
    step_signals: bool = True
    ponder_weight: float = 0.01
    max_length: int = 512
    tie_embeddings: bool = True

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "steps", "max_length")
        if self.halting_threshold is not None and not 0 < self.halting_threshold <= 1:
            raise ValueError(
                f"halting_threshold={self.halting_threshold} must be in (0, 1], e.g. 0.99; None takes all steps"
            )
        if self.ponder_weight < 0:
            raise ValueError(f"ponder_weight={self.ponder_weight} must be at least 0")
        if isinstance(self.block.ffn, MixtureConfig):
            raise ValueError("one block serves all steps, and experts balance one step only: leave the experts out")
        if self.block.layer_pattern:
            raise ValueError("one block serves all steps: leave its layer_pattern out")
        if self.step_signals:
            check_even(self.block.d_model, "step signals")


@dataclass(frozen=True)
class UniversalTransformerConfig(TranslationConfig, UniversalConfig):
    """Sizes of an encoder–decoder: those of `UniversalConfig` and of `TranslationConfig`."""

    def __post_init__(self):
        super().__post_init__()
        self.check_special_tokens()
        check_two_sided(self.block.position)


@dataclass(frozen=True)
class UniversalGPTConfig(UniversalConfig):
    """Sizes of a decoder; the rest is in `UniversalConfig`.

    Args:
        bos_id, eos_id, pad_id: the vocabulary's special tokens, where it has them; several may end a text.
    """

    bos_id: int | None = None
    eos_id: int | tuple[int, ...] | None = None
    pad_id: int | None = None


@dataclass(frozen=True)
class Pondering:
    """How long the positions of a batch were thought about (Graves 2016, §2).

    steps: N, the number of steps, 0 for padding; remainder: R, what the probabilities before the last step left of 1,
    which is the last step's weight.
    """

    steps: Int[Tensor, "batch length"]
    remainder: Float[Tensor, "batch length"]

    @property
    def cost(self) -> Float[Tensor, ""]:
        """N + R, the mean of all positions but padding (Graves 2016, §2.1). N has no gradient; R has."""
        return (self.steps + self.remainder).sum() / (self.steps > 0).sum().clamp(min=1)


class RecurrentCache(DecoderCache):
    """One `BlockCache` per step, as the keys of a position change with its state; the memory's are the same for all.

    A later token may take a step that those before it did not: where all of them had halted, the step was left out.
    Their keys are then made from the states that they halted with.

    Args:
        caches: for each step.
    """

    def __init__(self, caches: Iterable[BlockCache]):
        super().__init__(caches)
        for block in self:
            block.cross_attention = self[0].cross_attention
        self.states: Tensor | None = None  # (batch, length, d_model): the last states, positions added

    def add_states(self, states: Float[Tensor, "batch new d_model"]) -> None:
        """Keep the last states of new positions."""
        self.states = states if self.states is None else torch.cat([self.states, states], dim=1)

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        self[0].cross_attention.reorder(rows)
        for block in self:
            block.self_attention.reorder(rows)
        if self.states is not None:
            self.states = self.states[rows]

    def crop(self, length: int) -> None:
        """Take back all positions from `length` on."""
        super().crop(length)
        if self.states is not None:
            self.states = self.states[:, :length]


class Recurrence(nn.Module):
    """One block applied `steps` times, or until every position has halted; with pre-norm, a last norm after it.

    Before each step the signals of position and step are added to the state (§2.1): P^t_{i,2j} = sin(i / 10000^{2j/d})
    + sin(t / 10000^{2j/d}), and with cosines for 2j + 1; positions i count from 0, steps t from 1. Where the config's
    positions act inside attention ("rotary" …), the signal is that of the step alone.

    With halting (§2.2 and appendix C, following Graves 2016) the probability p_t that step t is a position's last is
    read from its state: the one before the step, signals included, or the one after it. The position halts at the first
    step N where p_1 + … + p_N > threshold, or at the last. Its output is the mean of its states after the steps,
    weighted with p_1 … p_{N-1} and the remainder R = 1 - (p_1 + … + p_{N-1}); so the weights sum to 1, where the code
    of appendix C, which blends each new state into the mean so far, gives others. From then on its state does not
    change, and other positions go on reading it, with the signals of the step they are at. Until all positions of the
    batch have halted each step is computed for all of them, then no further one is.

    `pondering` is how long the last batch was thought about.

    Args:
        cross: whether the block also reads a memory.
        causal: whether no position ever sees a later one.
    """

    signals: Tensor | None

    def __init__(self, config: UniversalConfig, *, cross: bool = False, causal: bool = False):
        super().__init__()
        block = config.block
        self.steps, self.threshold, self.halting_after = config.steps, config.halting_threshold, config.halting_after
        self.ponder_weight = config.ponder_weight
        layer = LayerContext(max_length=config.max_length, causal=causal)
        self.layers: Any = nn.ModuleList([TransformerBlock(block, cross=cross, layer=layer)])  # the one, for all steps
        self.position = make_position(block.position, config.max_length, block.d_model)
        signals = None  # (steps, d_model)
        if config.step_signals:
            layout = block.position.layout if isinstance(block.position, SinusoidalConfig) else "interleaved"
            signals = sinusoidal(self.steps, block.d_model, layout=layout, offset=1)
        self.register_buffer("signals", signals, persistent=False)
        self.norm = block.norm.make_last(block.d_model)
        self.halting = None
        if self.threshold is not None:
            self.halting = nn.Linear(block.d_model, 1)
            nn.init.xavier_uniform_(self.halting.weight)
            nn.init.constant_(self.halting.bias, config.halting_bias)
        self.pondering: Any = None  # a Pondering, after the first batch

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: MaskLike = None,
        memory: Float[Tensor, "batch memory_length d_model"] | None = None,
        memory_mask: MaskLike = None,
        cache: RecurrentCache | None = None,
        real: Bool[Tensor, "batch length"] | None = None,
        counted: Bool[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """The states after the steps, or with halting their weighted means.

        Args:
            mask, memory, memory_mask: see `TransformerBlock`.
            cache: from `new_cache`; x then holds the new positions only.
            real: False for padding, which has halted from the start; None: all are real.
            counted: False where `pondering` is to say 0; None: all count.
            position_ids: where the positions stand; unless given, one after another.
        """
        past = 0 if cache is None else cache.length
        if cache is None and memory is not None:
            cache = self.new_cache()  # the memory is projected once, for all steps
        state, out = x, torch.zeros_like(x)
        running = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real  # (batch, length)
        sum_p = torch.zeros_like(x[..., 0], dtype=torch.promote_types(x.dtype, torch.float32))  # (batch, length)
        steps, remainder = torch.zeros_like(running, dtype=torch.long), torch.zeros_like(sum_p)
        with sharing(mask, memory_mask, self.layers[0].self_attention.mask):
            for t in range(1, self.steps + 1):
                read = self.signal(self.locate(state, past, position_ids), t)  # (batch, length, d_model)
                if cache is not None:
                    self.catch_up(cache, past, t)
                after = self.layers[0](read, mask, memory, memory_mask, None if cache is None else cache[t - 1])
                steps = steps + running
                if self.halting is None:
                    state = out = after
                    continue
                p = self.halting(after if self.halting_after else read)[..., 0]  # (batch, length)
                p = p.to(sum_p.dtype).sigmoid()
                halts = running & (sum_p + p > self.threshold) if t < self.steps else running
                weight = torch.where(halts, 1 - sum_p, p) * running  # (batch, length)
                remainder = torch.where(halts, weight, remainder)
                sum_p, out = sum_p + weight, out + weight[..., None].to(x.dtype) * after
                state = torch.where(running[..., None], after, state)
                running = running & ~halts
                if not torch.compiler.is_compiling() and not is_fake(running) and not running.any():
                    break
        if cache is not None and self.halting is not None:
            cache.add_states(self.locate(state, past, position_ids))
        if counted is not None:
            steps, remainder = steps * counted, remainder * counted
        self.pondering = Pondering(steps, remainder)
        return self.norm(out)

    def locate(
        self, state: Float[Tensor, "batch length d_model"], past: int, position_ids: Tensor | None
    ) -> Float[Tensor, "batch length d_model"]:
        """The states plus their positions, where those are added."""
        return state if self.position is None else self.position(state, past, position_ids)

    def signal(self, x: Float[Tensor, "batch length d_model"], t: int) -> Float[Tensor, "batch length d_model"]:
        """x plus the signal of step t, where it is added."""
        return x if self.signals is None else x + self.signals[t - 1].to(x.dtype)

    def catch_up(self, cache: RecurrentCache, past: int, t: int) -> None:
        """Give the cache of step t the keys of positions that had halted before it.

        That is the block's self-attention of those positions without use of its output.
        """
        block, own = self.layers[0], cache[t - 1].self_attention
        if own.length < past and cache.states is not None:
            missing = self.signal(cache.states[:, own.length : past], t)
            if block.config.norm.placement != "post":
                missing = block.self_attention_norm(missing)
            block.self_attention(missing, mask=causal(), cache=own)

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        """An empty cache for each step; see `TransformerBlock.new_cache`."""
        return RecurrentCache(self.layers[0].new_cache(capacity) for _ in range(self.steps))

    def auxiliary_loss(self) -> Float[Tensor, ""] | float:
        """The last batch's mean ponder cost, times its weight; without halting there is none."""
        if self.pondering is None or self.halting is None:
            return 0.0
        return self.ponder_weight * self.pondering.cost

    def __getstate__(self) -> dict:
        """Without the last pondering: it hangs on a graph, which cannot be copied."""
        return {**self.__dict__, "pondering": None}


@output
class UniversalSeq2SeqOutput(Seq2SeqOutput[Loss]):
    """What the encoder–decoder returns: `Seq2SeqOutput`, and the steps that each position took, padding 0.

    ponder: (batch, target), in the decoder; encoder_ponder: (batch, source).
    """

    ponder: Int[Tensor, "batch target"] | None = None
    encoder_ponder: Int[Tensor, "batch source"] | None = None


class UniversalTransformer(TranslationModel, config=UniversalTransformerConfig):
    """Encoder, decoder, each one block with halting of its own, and one embedding matrix for source, target and output.

    `encoder.pondering` and `decoder.pondering` are what the last batch took; tokens equal to pad_id are not counted.
    """

    __call__: LabeledCall[UniversalSeq2SeqOutput[Tensor], UniversalSeq2SeqOutput]

    def __init__(self, config: UniversalTransformerConfig):
        super().__init__(config, config.block.d_model)
        self.encoder = Recurrence(config)
        self.decoder = Recurrence(config, cross=True, causal=True)

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        labels: Int[Tensor, "batch target"] | None = None,
    ) -> UniversalSeq2SeqOutput:
        """Read the source, predict each next token of the target; see `TranslationModel`. While training, the loss
        includes the ponder cost.
        """
        out = super().forward(input_ids, attention_mask, decoder_input_ids, labels)
        read, written = self.encoder.pondering.steps, self.decoder.pondering.steps
        return UniversalSeq2SeqOutput(**vars(out), ponder=written, encoder_ponder=read)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source d_model"]:
        """The memory: one vector for each source token."""
        check_source(input_ids)
        mask = real_tokens(attention_mask, input_ids.shape)
        return self.encoder(self.embed(input_ids), mask, real=None if attention_mask is None else attention_mask.bool())

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: RecurrentCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """One vector for each target token, from which `logits` predicts the next.

        Args:
            attention_mask: the source's; 1 = may be read.
            cache: from `new_cache`; decoder_input_ids then holds the new tokens only.
        """
        memory_mask = real_tokens(attention_mask, memory.shape[:2])
        check_ids(decoder_input_ids, "decoder_input_ids")
        counted = decoder_input_ids != self.config.pad_id
        return self.decoder(self.embed(decoder_input_ids), causal(), memory, memory_mask, cache, counted=counted)

    def embed(self, input_ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """Token vectors. Positions are added before each step, not here."""
        return dropout(self.embedding(input_ids), self.config.block.dropout, self.training)

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        """An empty cache for `decode`."""
        return self.decoder.new_cache(capacity)


@output
class UniversalCausalLMOutput(CausalLMOutput[Loss]):
    """What the decoder returns: `CausalLMOutput`, and the steps that each position took, padding 0.

    ponder: (batch, length).
    """

    ponder: Int[Tensor, "batch length"] | None = None


class UniversalGPT(Model, config=UniversalGPTConfig):
    """Decoder-only: one block that looks back only, applied again and again; a language model as `GPT` is.

    Token vectors are scaled by √d_model, as in the encoder–decoder, since signals of size 1 are added to them.
    `decoder.pondering` is what the last batch took.
    """

    __call__: LabeledCall[UniversalCausalLMOutput[Tensor], UniversalCausalLMOutput]

    def __init__(self, config: UniversalGPTConfig):
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.block.d_model)
        self.decoder = Recurrence(config, causal=True)
        self.output = None if config.tie_embeddings else nn.Linear(config.block.d_model, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch total"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
        cache: RecurrentCache | None = None,
        mask: Mask | None = None,
    ) -> UniversalCausalLMOutput:
        """Predict each next token. Arguments as in `GPT.forward`; while training, the loss includes the ponder cost."""
        hidden = self.decode(input_ids, attention_mask, cache, mask)
        logits = self.logits(hidden)
        loss = None if labels is None else next_token_loss(logits, labels)
        if loss is not None and self.training:
            loss = loss + auxiliary_loss(self)
        ponder = self.decoder.pondering.steps
        return UniversalCausalLMOutput(logits=logits, last_hidden_state=hidden, loss=loss, ponder=ponder)

    def decode(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch total"] | None = None,
        cache: RecurrentCache | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """One vector for each token, from which `logits` predicts the next. Arguments as in `forward`."""
        past = cache.length if cache else 0
        check_ids(input_ids, past=past)
        hidden_keys = real_tokens(attention_mask, (input_ids.shape[0], past + input_ids.shape[1]))
        real = position_ids = None
        if attention_mask is not None:
            real = attention_mask.bool()[:, past:]
            position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, past:]  # padding does not count
        x = dropout(self.embedding(input_ids), self.config.block.dropout, self.training)
        seen = together(causal(), hidden_keys, mask)
        return self.decoder(x, seen, cache=cache, real=real, position_ids=position_ids)

    def logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Unnormalized log-probabilities of the next token."""
        return F.linear(hidden, self.output_weight)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The output projection, tied or not."""
        return self.embedding.weight if self.output is None else self.output.weight

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        """An empty cache for `decode`."""
        return self.decoder.new_cache(capacity)
