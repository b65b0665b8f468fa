"""The recurrent encoder–decoder, with one context vector (Cho et al. 2014) or with attention (Bahdanau et al. 2015,
Luong et al. 2015).

    h_t = g_enc(h_{t-1}, x_t)                the encoder reads the source, from both ends
    s_t = g_dec(s_{t-1}, y_{t-1}, c_t)       the decoder's state
    y_t = g_out(s_t, y_{t-1}, c_t)           the next token
    c_t = Σ_i a_{t,i} h_i                    with attention; without, one c for all steps

The query of the attention decides the order and the speed: a decoder that needs c_t before s_t runs step by step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import AdditiveAttention, BilinearAttention, DotAttention
from txlib.attention.mechanism import check_dropout
from txlib.layers.feedforward import dropout
from txlib.models.inputs import real_tokens
from txlib.models.translation import TranslationConfig, TranslationModel, check_source

CELLS: dict[str, Any] = {"gru": nn.GRU, "lstm": nn.LSTM}
ATTENTIONS: dict[str | None, Callable[[int], nn.Module | None]] = {
    None: lambda width: None,
    "additive": AdditiveAttention,
    "bilinear": BilinearAttention,
    "dot": lambda width: DotAttention(),
}
# Of one layer, each part (directions, batch, width): s of a GRU; s and the memory cell of an LSTM.
State = tuple[Tensor, ...]
Attend = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Seq2SeqConfig(TranslationConfig):
    """Sizes of a recurrent encoder–decoder; the other fields are in `TranslationConfig`.

    Args:
        d_model: width of token vectors, annotations h and states s.
        encoder_layers, decoder_layers: number of recurrent layers, with residual connections from the second on, as in
            GNMT (Wu et al. 2016, §3.1).
        cell: "gru" (Cho et al. 2014, in torch's form: the reset gate acts after the matrix) or "lstm".
        bidirectional: whether the encoder reads from both ends, with d_model / 2 units each, or only forwards.
        attention: "additive", "bilinear" or "dot"; None: the encoder's last states are the one context vector c, which
            enters s_0, each step, and g_out.
        order: the query that c_t belongs to. "bahdanau": s_{t-1} of the lowest layer, as in GNMT; c_t enters the step
            and g_out. "luong": s_t of the top layer; c_t enters g_out only. None: "bahdanau" for additive attention,
            "luong" for the others, as in the papers.
        input_feeding: in Luong's order, g_out's vector of one step is an input of the next (Luong et al. 2015, §3.3).
        dropout: on token vectors, between layers and on g_out's vector, never from step to step (Zaremba et al. 2014).
    """

    d_model: int = 256
    encoder_layers: int = 1
    decoder_layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = True
    attention: Literal["additive", "bilinear", "dot"] | None = "additive"
    order: Literal["bahdanau", "luong"] | None = None
    input_feeding: bool = False
    dropout: float = 0.0

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "d_model", "encoder_layers", "decoder_layers")
        self.check_special_tokens()
        if self.bidirectional and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} is shared by two directions; make it even, or bidirectional=False"
            )
        check_dropout(self.dropout)
        if self.order and not self.attention:
            raise ValueError(f"order={self.order!r} is of the attention, but attention=None; leave it out")
        if self.input_feeding and self.effective_order != "luong":
            raise ValueError(
                f"input_feeding needs Luong's order, got attention={self.attention!r} with {self.effective_order!r}; "
                "set order='luong'"
            )

    @property
    def effective_order(self) -> str | None:
        """The order, which the attention implies unless the config says it."""
        default = {None: None, "additive": "bahdanau"}.get(self.attention, "luong")
        return self.order or default


class Seq2SeqCache:
    """The decoder's state, whose size does not depend on how much has been decoded."""

    def __init__(self):
        self.length = 0  # tokens decoded so far
        self.states: list[State] = []  # of each layer; none before the first call
        self.keys: Any = None  # (batch, 1, source, d_model): what scores read of h, computed once per source
        self.context: Any = None  # (batch, 1, d_model): the one c; with input feeding, g_out's last vector

    def reorder(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these rows of the batch, in this order."""
        self.states = [tuple(part[:, rows] for part in state) for state in self.states]
        self.context = None if self.context is None else self.context[rows]
        self.keys = None if self.keys is None else self.keys[rows]


class RecurrentLayer(nn.Module):
    """g_enc or g_dec over a whole sequence: torch's GRU or LSTM.

    Args:
        residual: add the input to the output, and apply dropout to the input, which is another layer's output.
    """

    def __init__(self, config: Seq2SeqConfig, input_size: int, *, bidirectional: bool = False, residual: bool = False):
        super().__init__()
        units = config.d_model // 2 if bidirectional else config.d_model
        self.cell = CELLS[config.cell](input_size, units, batch_first=True, bidirectional=bidirectional)
        self.residual, self.dropout = residual, config.dropout

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        state: State | None = None,
        lengths: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch length d_model"], State]:
        """Return the states of all steps, and the state after the last.

        Args:
            state: the initial state; None: zeros.
            lengths: number of real tokens of each sentence, where there is padding, which is then not read.
        """
        inputs: Any = dropout(x, self.dropout, self.training) if self.residual else x
        if lengths is not None:
            inputs = nn.utils.rnn.pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # oneDNN has no LSTM of 16 bits on some CPUs, so there the cell computes in 32
        with torch.autocast("cpu", enabled=False):
            out, new = self.cell(inputs, state if state is None or len(state) > 1 else state[0])
        if lengths is not None:
            out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return x + out if self.residual else out, new if isinstance(new, tuple) else (new,)


class Seq2Seq(TranslationModel, config=Seq2SeqConfig):
    """Encoder, decoder, and one embedding matrix for source, target and output; see the top of the file.

    Where c_t depends on s_{t-1} (Bahdanau's order, input feeding), the decoder runs step by step, even while training.
    Otherwise one call of torch's kernel reads the whole target.
    """

    def __init__(self, config: Seq2SeqConfig):
        width = config.d_model
        super().__init__(config, width, config.dropout)
        self.encoder_layers: Any = nn.ModuleList(
            RecurrentLayer(config, width, bidirectional=config.bidirectional, residual=number > 0)
            for number in range(config.encoder_layers)
        )
        self.attention: Any = ATTENTIONS[config.attention](width)
        reads_context = config.effective_order != "luong" or config.input_feeding
        self.decoder_layers: Any = nn.ModuleList(
            RecurrentLayer(config, 2 * width if reads_context and not number else width, residual=number > 0)
            for number in range(config.decoder_layers)
        )
        self.start = nn.Linear(width, config.decoder_layers * (2 if config.cell == "lstm" else 1) * width)
        self.combine = nn.Linear((2 if config.effective_order == "luong" else 3) * width, width)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None = None
    ) -> Float[Tensor, "batch source d_model"]:
        """Return the memory: h_1 … h_Tx, one annotation for each source token.

        Raises:
            ValueError: for a source without a token, and for padding before one.
        """
        lengths = real_lengths(input_ids, attention_mask)
        h, _ = run_layers(self.encoder_layers, self.embed(input_ids), [None] * len(self.encoder_layers), lengths)
        return h

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: Seq2SeqCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Return one vector for each target token, as `TranslationModel.decode` says.

        Raises:
            ValueError: when memory or cache hold another number of sentences.
        """
        return self.decode_and_align(decoder_input_ids, memory, attention_mask, cache)[0]

    @torch.no_grad()
    def alignment(
        self,
        input_ids: Int[Tensor, "batch source"],
        decoder_input_ids: Int[Tensor, "batch target"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch target source"]:
        """Return a_{t,i}: the weight of source token i in the step that predicts target token t.

        Raises:
            ValueError: for a model without attention.
        """
        if self.attention is None:
            raise ValueError("attention=None aligns nothing: all steps read one vector; train with 'additive'")
        memory = self.encode(input_ids, attention_mask)
        return self.decode_and_align(decoder_input_ids, memory, attention_mask)[1]

    def decode_and_align(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None = None,
        cache: Seq2SeqCache | None = None,
    ) -> tuple[Float[Tensor, "batch target d_model"], Any]:
        """Return the result of `decode`, and the weights a_{t,i}; None without attention."""
        cache = self.new_cache() if cache is None else cache
        self.initialize_cache(cache, decoder_input_ids, memory, attention_mask)
        mask = real_tokens(attention_mask, memory.shape[:2])
        allowed = None if mask is None else mask.dense(1, memory.shape[1], device=memory.device)

        def attend(s: Tensor) -> tuple[Tensor, Tensor]:
            """Return c and a of these states, (batch, steps, d_model) and (batch, steps, source)."""
            a = self.attention.weigh(s[:, None], cache.keys, allowed)
            return self.attention.average(a, memory[:, None])[:, 0], a[:, 0]

        y = self.embed(decoder_input_ids)
        cache.length += y.shape[1]
        orders = {None: self.without_attention, "bahdanau": self.attend_before, "luong": self.attend_after}
        hidden, a = orders[self.config.effective_order](y, cache, attend)
        return dropout(hidden, self.config.dropout, self.training), a

    def initialize_cache(
        self,
        cache: Seq2SeqCache,
        decoder_input_ids: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch source d_model"],
        attention_mask: Int[Tensor, "batch source"] | None,
    ) -> None:
        """Fill an empty cache with s_0 = tanh(W c) of each layer and what is computed once per source; c holds the last
        state of each direction. Only check a cache that is not empty.
        """
        batch, width = len(decoder_input_ids), self.config.d_model
        if not decoder_input_ids.shape[1]:
            raise ValueError(f"decoder_input_ids has no tokens; begin with bos_id={self.config.bos_id}")
        if memory.shape[0] != batch or memory.shape[-1] != width:
            raise ValueError(
                f"the memory has shape {tuple(memory.shape)}, expected (batch, source, d_model) = "
                f"({batch}, any, {width})"
            )
        if cache.states:
            if (held := cache.states[0][0].shape[1]) != batch:
                raise ValueError(
                    f"the cache holds the state of {held} sentences, decoder_input_ids has {batch}; "
                    "choose its rows with reorder, or begin with new_cache()"
                )
            return
        c = self.last(memory, attention_mask)  # (batch, d_model)
        parts = 2 if self.config.cell == "lstm" else 1
        start = self.start(c).tanh().to(c.dtype).view(batch, -1, parts, width).unbind(dim=1)  # of each layer
        cache.states = [tuple(part[None].contiguous() for part in state.unbind(dim=1)) for state in start]
        if self.attention is None:
            cache.context = c[:, None]
        else:
            cache.keys = self.attention.project(memory[:, None])
            cache.context = torch.zeros_like(c[:, None])

    def last(
        self, memory: Float[Tensor, "batch source d_model"], attention_mask: Int[Tensor, "batch source"] | None
    ) -> Float[Tensor, "batch d_model"]:
        """Return the forward half's last state, at the last real token, and the backward half's, at the first."""
        if attention_mask is None:
            end = memory[:, -1]
        else:
            end = memory[torch.arange(len(memory), device=memory.device), attention_mask.sum(dim=1) - 1]
        if not self.config.bidirectional:
            return end
        half = memory.shape[-1] // 2
        return torch.cat([end[:, :half], memory[:, 0, half:]], dim=-1)

    def without_attention(
        self, y: Float[Tensor, "batch target d_model"], cache: Seq2SeqCache, attend: Attend
    ) -> tuple[Tensor, None]:
        """Compute s_t = g_dec(s_{t-1}, y_{t-1}, c) and g_out(s_t, y_{t-1}, c) (Cho et al. 2014, App. A), all steps at
        once.
        """
        c = cache.context.expand_as(y)
        s, cache.states = run_layers(self.decoder_layers, torch.cat([y, c], dim=-1), cache.states)
        return self.g_out(s, y, c), None

    def attend_before(
        self, y: Float[Tensor, "batch target d_model"], cache: Seq2SeqCache, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """Compute c_t of s_{t-1}, then s_t = g_dec(s_{t-1}, y_{t-1}, c_t) and g_out(s_t, y_{t-1}, c_t) (Bahdanau et al.
        2015, §3.1): the lowest layer step by step, the others at once.
        """
        lowest, state, steps = self.decoder_layers[0], cache.states[0], []
        for y_t in y.split(1, dim=1):
            c_t, a_t = attend(state[0].transpose(0, 1))
            s_t, state = lowest(torch.cat([y_t, c_t], dim=-1), state)
            steps.append((s_t, c_t, a_t))
        s, c, a = (torch.cat(vectors, dim=1) for vectors in zip(*steps, strict=True))
        s, others = run_layers(self.decoder_layers[1:], s, cache.states[1:])
        cache.states = [state, *others]
        return self.g_out(s, y, c), a

    def attend_after(
        self, y: Float[Tensor, "batch target d_model"], cache: Seq2SeqCache, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """Compute s_t = g_dec(s_{t-1}, y_{t-1}), then c_t of s_t and g_out(s_t, c_t) (Luong et al. 2015, eq. 5), all
        steps at once unless g_out's vector is an input of the next.
        """
        feeds, steps = self.config.input_feeding, []
        for x in y.split(1, dim=1) if feeds else [y]:
            if feeds:
                x = torch.cat([x, cache.context], dim=-1)
            s, cache.states = run_layers(self.decoder_layers, x, cache.states)
            c, a = attend(s)
            hidden = self.g_out(s, c)
            steps.append((hidden, a))
            cache.context = hidden[:, -1:]
        hidden, a = (torch.cat(vectors, dim=1) for vectors in zip(*steps, strict=True))
        return hidden, a

    def g_out(self, *vectors: Float[Tensor, "batch target d_model"]) -> Float[Tensor, "batch target d_model"]:
        """Return tanh(W [s_t; y_{t-1}; c_t] + b), from which `logits` predicts y_t; Luong's has no y_{t-1}."""
        return self.combine(torch.cat(vectors, dim=-1)).tanh()

    def new_cache(self) -> Seq2SeqCache:
        return Seq2SeqCache()


def run_layers(
    layers: Iterable[RecurrentLayer],
    x: Float[Tensor, "batch length _"],
    states: Sequence[State | None],
    lengths: Int[Tensor, "batch"] | None = None,
) -> tuple[Float[Tensor, "batch length d_model"], list[State]]:
    """Run one layer after another, each from its state; return the last layer's output, and all new states."""
    new = []
    for layer, state in zip(layers, states, strict=True):
        x, state = layer(x, state, lengths)
        new.append(state)
    return x, new


def real_lengths(
    input_ids: Int[Tensor, "batch source"], attention_mask: Int[Tensor, "batch source"] | None
) -> Int[Tensor, "batch"] | None:
    """Return the number of real tokens of each sentence; None where all are real.

    Raises:
        ValueError: when a sentence has none, or padding before one.
    """
    check_source(input_ids)
    if attention_mask is None or real_tokens(attention_mask, input_ids.shape) is None:
        return None
    lengths = attention_mask.sum(dim=1)
    if not lengths.all():
        empty = int((lengths == 0).nonzero()[0])
        raise ValueError(f"sentence {empty} of the source has no token: its attention_mask is all 0; leave it out")
    if (attention_mask.int().diff(dim=1) > 0).any():
        raise ValueError("attention_mask has a 0 before a 1; a recurrent net reads on through gaps: pad at the end")
    return lengths
