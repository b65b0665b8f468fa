"""The decoder-only language model: GPT-2, GPT-3, Llama and Mixtral are configs of it."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import DecoderCache, Mask, causal
from txlib.attention.functional import soft_cap
from txlib.attention.mechanism import check_dropout
from txlib.layers import BlockConfig, MixtureOfExperts, Routing, TokenEmbedding, make_position
from txlib.layers.feedforward import dropout
from txlib.layers.initialize import initialize
from txlib.models.inputs import check_ids, check_labels, real_tokens, together, unpadded_positions
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, LossOutput, auxiliary_loss, cross_entropy, output
from txlib.models.stack import ModelConfig, Stack


@dataclass(frozen=True)
class GPTConfig(ModelConfig):
    """Sizes of a decoder.

    Args:
        vocab_size: number of tokens.
        block: config of each block.
        layers: number of blocks.
        max_length: context length: most tokens that the model sees at a time.
        tie_embeddings: use the embedding's matrix as the output projection as well.
        embedding_dropout: on the sum of token and position vectors; None: the block's `dropout`.
        embedding_scale: what token vectors are multiplied by.
        logit_divisor: what logits are divided by.
        logit_softcap: keeps logits between -logit_softcap and logit_softcap by tanh; None: no cap.
        init_std: standard deviation of the initial weights, smaller by √(2 · layers) for matrices whose output is added
            to the residual stream, so that its variance does not grow with depth (Radford et al. 2019, §2.3).
        bos_id, eos_id, pad_id: the vocabulary's special tokens, where it has them; several may end a text.
    """

    vocab_size: int
    block: BlockConfig
    layers: int = 12
    max_length: int = 1024
    tie_embeddings: bool = True
    embedding_dropout: float | None = None
    embedding_scale: float = 1.0
    logit_divisor: float = 1.0
    logit_softcap: float | None = None
    init_std: float = 0.02
    bos_id: int | None = None
    eos_id: int | tuple[int, ...] | None = None
    pad_id: int | None = None

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "layers", "max_length")
        check_dropout(self.embedding_dropout or 0.0, "embedding_dropout")
        for name in ("logit_divisor", "logit_softcap"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be above 0")


@output
class CausalLMOutput(LossOutput[Loss]):
    """Output of a decoder, under Hugging Face's names.

    logits: (batch, length, vocab_size), row i predicts token i + 1; last_hidden_state: (batch, length, d_model); loss:
    mean over the labels that count.
    """

    logits: Float[Tensor, "batch length vocab"]
    last_hidden_state: Float[Tensor, "batch length d_model"]


class GPT(Model, config=GPTConfig):
    """Embedding, causal blocks and output projection (Radford et al. 2018, §3.1; Radford et al. 2019, §2.3)."""

    __call__: LabeledCall[CausalLMOutput[Tensor], CausalLMOutput]

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = GPTConfig.checked(config)
        block = config.block
        self.embedding = TokenEmbedding(config.vocab_size, block.d_model, scaled=config.embedding_scale)
        self.position = make_position(block.position, config.max_length, block.d_model)
        self.decoder = Stack(block, config.layers, causal=True, max_length=config.max_length)
        self.output = None if config.tie_embeddings else nn.Linear(block.d_model, config.vocab_size, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """Draw all weights again; see `GPTConfig.init_std`."""
        initialize(self, self.config, self.config.init_std / (2 * self.config.layers) ** 0.5)

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch total"] | None = None,
        labels: Int[Tensor, "batch length"] | None = None,
        cache: DecoderCache | None = None,
        mask: Mask | None = None,
    ) -> CausalLMOutput:
        """Predict each next token.

        Args:
            attention_mask: 1 = a real token, 0 = padding, on either side; None: all are real. With a cache it also
                covers the past.
            labels: usually the input itself: they are shifted here, so that row i of the logits is compared with label
                i + 1. -100 is not counted. While training, the load-balancing loss of experts is added.
            cache: from `new_cache`; input_ids then holds the new tokens only.
            mask: a further restriction of what positions see, such as `sliding_window(256)`.
        """
        hidden = self.decode(input_ids, attention_mask, cache, mask)
        logits = self.logits(hidden)
        loss = None if labels is None else next_token_loss(logits, labels)
        if loss is not None and self.training:
            loss = loss + auxiliary_loss(self)
        return CausalLMOutput(logits=logits, last_hidden_state=hidden, loss=loss)

    def decode(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch total"] | None = None,
        cache: DecoderCache | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return one vector for each token, from which `logits` predicts the next. Arguments as in `forward`."""
        past = cache.length if cache else 0
        check_ids(input_ids, past=past, max_length=self.config.max_length)
        real = real_tokens(attention_mask, (input_ids.shape[0], past + input_ids.shape[1]))
        x = self.embed(input_ids, None if real is None else attention_mask, past)
        return self.decoder(x, together(causal(), real, mask), cache=cache)

    def embed(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        past: int = 0,
        position_ids: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Return token vectors, plus positions where the config adds them: from `past` on, padding not counted, or
        position_ids."""
        x = self.embedding(input_ids)
        if self.position is not None:
            if attention_mask is not None:
                position_ids = unpadded_positions(attention_mask, past)
            x = self.position(x, past, position_ids)
        dropout_p = self.config.embedding_dropout
        return dropout(x, self.config.block.dropout if dropout_p is None else dropout_p, self.training)

    def logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return unnormalized log-probabilities of the next token."""
        logits = F.linear(hidden, self.embedding.weight) if self.output is None else self.output(hidden)
        divisor, softcap = self.config.logit_divisor, self.config.logit_softcap
        if divisor != 1.0:
            logits = logits / divisor
        return logits if softcap is None else soft_cap(logits, softcap)

    @property
    def output_weight(self) -> Float[Tensor, "vocab d_model"]:
        """The output projection, tied or not."""
        return self.embedding.weight if self.output is None else self.output.weight

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """Return an empty cache for `decode`; see `TransformerBlock.new_cache`."""
        return self.decoder.new_cache(capacity)

    def routing(self) -> list[Routing]:
        """Return the last batch's routing in each layer of experts."""
        layers = (layer for layer in self.modules() if isinstance(layer, MixtureOfExperts))
        return [layer.routing for layer in layers if layer.routing is not None]


def next_token_loss(
    logits: Float[Tensor, "batch length vocab"], labels: Int[Tensor, "batch length"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of each row's logits with the label one step later."""
    check_labels(labels, logits.shape[:-1])
    return cross_entropy(logits[:, :-1], labels[:, 1:])
