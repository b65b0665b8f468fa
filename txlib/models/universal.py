"""The Universal Transformer (Dehghani et al. 2019): one block applied repeatedly, for as long as a position needs.

All steps share their weights, so the number of steps is not a property of the parameters. `Recurrence` replaces the
`Stack` of other models: `UniversalTransformer` is an encoder–decoder of two, `UniversalGPT` a decoder of one. The
transition function is the feed-forward network, as in the paper's translation model; its alternative, a separable
convolution, is not implemented.
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
from txlib.models.inputs import check_ids, real_tokens, together, unpadded_positions
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, auxiliary_loss, output
from txlib.models.stack import ModelConfig
from txlib.models.translation import Seq2SeqOutput, TranslationConfig, TranslationModel, check_source


@dataclass(frozen=True)
class UniversalConfig(ModelConfig):
    """Fields that both models' configs share.

    Args:
        vocab_size: number of tokens; source and target share them.
        block: config of the one block. The paper's has `norm_first=False` and `position="sinusoidal"`.
        steps: number of times that the block is applied; with halting, the maximum. No parameter depends on it, so
            trained weights can be loaded into a model of more steps.
        halting_threshold: a position halts when its halting probabilities sum to more (1 - ε of Graves 2016, §2, who
            uses 0.99); None: all positions take all steps.
        halting_bias: initial bias of the halting unit. With the paper's 1 an untrained position halts at its second
            step; with a negative bias it takes many.
        halting_after: whether the halting unit reads the output of a step, as in Graves 2016, §2, instead of its input,
            as in the paper's appendix C.
        step_signals: whether the signal of a step is added to its input; without it no step knows its number.
        ponder_weight: factor of the mean ponder cost in the training loss (τ of Graves 2016, §2.1).
        max_length: longest sequence.
        tie_embeddings: use the embedding's matrix as the output projection as well.
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
    """Sizes of a decoder; the other fields are in `UniversalConfig`.

    Args:
        bos_id, eos_id, pad_id: the vocabulary's special tokens, where it has them; several may end a text.
    """

    bos_id: int | None = None
    eos_id: int | tuple[int, ...] | None = None
    pad_id: int | None = None


@dataclass(frozen=True)
class Pondering:
    """Steps that the positions of a batch took (Graves 2016, §2).

    steps: N, the number of steps, 0 for padding; remainder: R, 1 minus the probabilities before the last step, which is
    the last step's weight.
    """

    steps: Int[Tensor, "batch length"]
    remainder: Float[Tensor, "batch length"]

    @property
    def cost(self) -> Float[Tensor, ""]:
        """N + R, the mean over all positions except padding (Graves 2016, §2.1). N has no gradient; R has."""
        return (self.steps + self.remainder).sum() / (self.steps > 0).sum().clamp(min=1)


class RecurrentCache(DecoderCache):
    """One `BlockCache` for each step, as a position's keys change with its state; all steps share the memory's.

    A later token may take a step that was skipped for those before it, because all of them had halted. Their keys are
    then computed from the states in which they halted.

    Args:
        caches: one for each step.
    """

    def __init__(self, caches: Iterable[BlockCache]):
        super().__init__(caches)
        for block in self:
            block.cross_attention = self[0].cross_attention
        self.states: Tensor | None = None  # (batch, length, d_model): the last states, positions added

    def add_states(self, states: Float[Tensor, "batch new d_model"]) -> None:
        """Append the last states of new positions."""
        self.states = states if self.states is None else torch.cat([self.states, states], dim=1)

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        self[0].cross_attention.reorder(rows)
        for block in self:
            block.self_attention.reorder(rows)
        if self.states is not None:
            self.states = self.states[rows]

    def crop(self, length: int) -> None:
        """Remove all positions from `length` on."""
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
    weighted with p_1 … p_{N-1} and the remainder R = 1 - (p_1 + … + p_{N-1}). These weights sum to 1; those of the code
    in appendix C, which blends each new state into the mean so far, do not. From then on its state does not change;
    other positions still read it, with the signals of their step. Each step is computed for all positions of the batch
    until the last of them has halted.

    `pondering` holds the steps that the last batch took.

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
        """Return the states after the steps, or with halting their weighted means.

        Args:
            mask, memory, memory_mask: see `TransformerBlock`.
            cache: from `new_cache`; x then holds the new positions only.
            real: False for padding, which has halted from the start; None: all are real.
            counted: False where `pondering` does not count the position; None: all count.
            position_ids: each position's index; None: 0, 1, 2 … after the cache's.
        """
        past = 0 if cache is None else cache.length
        if cache is None and memory is not None:
            cache = self.new_cache()  # the memory is projected once, for all steps
        state, out = x, torch.zeros_like(x)
        running = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real  # (batch, length)
        sum_p = torch.zeros_like(x[..., 0], dtype=torch.promote_types(x.dtype, torch.float32))  # (batch, length)
        steps, remainder = torch.zeros_like(running, dtype=torch.long), torch.zeros_like(sum_p)
        with sharing(mask, memory_mask, getattr(self.layers[0].self_attention, "mask", None)):
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
        """Return the states plus their positions, where the config adds them."""
        return state if self.position is None else self.position(state, past, position_ids)

    def signal(self, x: Float[Tensor, "batch length d_model"], t: int) -> Float[Tensor, "batch length d_model"]:
        """Return x plus the signal of step t, where the config adds it."""
        return x if self.signals is None else x + self.signals[t - 1].to(x.dtype)

    def catch_up(self, cache: RecurrentCache, past: int, t: int) -> None:
        """Add the keys of positions that had halted before step t to its cache.

        To do so, it calls the block's self-attention on those positions and ignores the output.
        """
        block, keys = self.layers[0], cache[t - 1].self_attention
        if keys.length < past and cache.states is not None:
            missing = self.signal(cache.states[:, keys.length : past], t)
            if block.config.norm.placement != "post":
                missing = block.self_attention_norm(missing)
            block.self_attention(missing, mask=causal(), cache=keys)

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        """Return an empty cache for each step; see `TransformerBlock.new_cache`."""
        return RecurrentCache(self.layers[0].new_cache(capacity) for _ in range(self.steps))

    def auxiliary_loss(self) -> Float[Tensor, ""] | float:
        """Return the last batch's mean ponder cost, times its weight; 0 without halting."""
        if self.pondering is None or self.halting is None:
            return 0.0
        return self.ponder_weight * self.pondering.cost

    def __getstate__(self) -> dict:
        """Leave out the last pondering, whose autograd graph cannot be copied."""
        return {**self.__dict__, "pondering": None}


@output
class UniversalSeq2SeqOutput(Seq2SeqOutput[Loss]):
    """Output of the encoder–decoder: `Seq2SeqOutput`, and the steps that each position took, 0 for padding.

    ponder: (batch, target), in the decoder; encoder_ponder: (batch, source).
    """

    ponder: Int[Tensor, "batch target"] | None = None
    encoder_ponder: Int[Tensor, "batch source"] | None = None


class UniversalTransformer(TranslationModel, config=UniversalTransformerConfig):
    """Encoder and decoder of one block each, which halt separately, and one embedding matrix.

    `encoder.pondering` and `decoder.pondering` hold the steps that the last batch took; tokens equal to pad_id are not
    counted. While training, the loss includes the ponder cost. Positions are added before each step, not to the tokens.
    """

    __call__: LabeledCall[UniversalSeq2SeqOutput[Tensor], UniversalSeq2SeqOutput]

    def __init__(self, config: UniversalTransformerConfig):
        super().__init__(config, config.block.d_model, config.block.dropout)
        self.encoder = Recurrence(config)
        self.decoder = Recurrence(config, cross=True, causal=True)

    def scored(self, hidden: Tensor, memory: Tensor, labels: Tensor | None) -> UniversalSeq2SeqOutput:
        steps = {"ponder": self.decoder.pondering.steps, "encoder_ponder": self.encoder.pondering.steps}
        return UniversalSeq2SeqOutput(**vars(super().scored(hidden, memory, labels)), **steps)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source d_model"]:
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
        memory_mask = real_tokens(attention_mask, memory.shape[:2])
        x = self.embed(decoder_input_ids, past=cache.length if cache else 0)
        counted = decoder_input_ids != self.config.pad_id
        return self.decoder(x, causal(), memory, memory_mask, cache, counted=counted)

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        return self.decoder.new_cache(capacity)


@output
class UniversalCausalLMOutput(CausalLMOutput[Loss]):
    """Output of the decoder: `CausalLMOutput`, and the steps that each position took, 0 for padding.

    ponder: (batch, length).
    """

    ponder: Int[Tensor, "batch length"] | None = None


class UniversalGPT(Model, config=UniversalGPTConfig):
    """A language model like `GPT`, whose decoder applies one causal block repeatedly.

    Token vectors are multiplied by √d_model, as in the encoder–decoder, since signals of size 1 are added to them.
    `decoder.pondering` holds the steps that the last batch took.
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
        """Return one vector for each token, from which `logits` predicts the next. Arguments as in `forward`."""
        past = cache.length if cache else 0
        check_ids(input_ids, past=past, max_length=self.config.max_length)
        hidden_keys = real_tokens(attention_mask, (input_ids.shape[0], past + input_ids.shape[1]))
        real = position_ids = None
        if attention_mask is not None:
            real = attention_mask.bool()[:, past:]
            position_ids = unpadded_positions(attention_mask, past)
        x = dropout(self.embedding(input_ids), self.config.block.dropout, self.training)
        seen = together(causal(), hidden_keys, mask)
        return self.decoder(x, seen, cache=cache, real=real, position_ids=position_ids)

    def logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return unnormalized log-probabilities of the next token."""
        return F.linear(hidden, self.output_weight)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The output projection, tied or not."""
        return self.embedding.weight if self.output is None else self.output.weight

    def new_cache(self, capacity: int | None = None) -> RecurrentCache:
        """Return an empty cache for `decode`; see `TransformerBlock.new_cache`."""
        return self.decoder.new_cache(capacity)
