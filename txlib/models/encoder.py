"""The encoder that reads in both directions: BERT and its relatives are configs of it (Devlin et al. 2019, §3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from txlib.attention import Mask
from txlib.layers import BlockConfig, LearnedConfig, LongformerConfig, TokenEmbedding, make_position
from txlib.layers.feedforward import dropout
from txlib.layers.initialize import initialize
from txlib.layers.position_config import check_two_sided, name_of
from txlib.models.inputs import check_ids, check_shape, real_tokens, together
from txlib.models.model import Model
from txlib.models.outputs import LabeledCall, Loss, LossOutput, Output, cross_entropy, output
from txlib.models.stack import ModelConfig, Stack


@dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """Sizes of an encoder.

    Args:
        vocab_size: number of tokens.
        block: config of each block.
        layers: number of blocks.
        max_length: longest input in tokens.
        segments: kinds of `token_type_ids`: sentence A and sentence B; 0: the model has none.
        first_norm: whether a pre-norm stack normalizes the input of its first attention, which the embedding's norm
            has normalized already.
        classifier_dropout: before the heads' last layer; None: the block's `dropout`.
        init_std: standard deviation of the initial weights.
        pad_id: the token that pads short sentences.
        sep_id: the token after a question, by which heads find its end.
        positions_after_pad: whether positions count real tokens only, from pad_id + 1 on, as in RoBERTa and Longformer.
    """

    vocab_size: int
    block: BlockConfig
    layers: int = 12
    max_length: int = 512
    segments: int = 2
    first_norm: bool = True
    classifier_dropout: float | None = None
    init_std: float = 0.02
    pad_id: int = 0
    sep_id: int | None = None
    positions_after_pad: bool = False

    def __post_init__(self):
        self.check_at_least_one("vocab_size", "layers", "max_length")
        if self.segments < 0:
            raise ValueError(f"segments={self.segments} must be at least 0")
        if not self.first_norm and self.block.norm.placement != "pre":
            raise ValueError("first_norm=False is for a pre-norm stack; leave it out")
        check_two_sided(self.block.position)
        if self.positions_after_pad and not isinstance(self.block.position, LearnedConfig):
            raise ValueError(f"positions_after_pad is for position='learned', not {name_of(self.block.position)!r}")

    @property
    def first_position(self) -> int:
        """Position of the first token."""
        return self.pad_id + 1 if self.positions_after_pad else 0


@output
class EncoderOutput(Output):
    """last_hidden_state: (batch, length, d_model); pooler_output: (batch, d_model), or None without a pooler."""

    last_hidden_state: Float[Tensor, "batch length d_model"]
    pooler_output: Float[Tensor, "batch d_model"] | None = None


@output
class HeadOutput(LossOutput[Loss]):
    """logits: of tokens, labels or choices, depending on the head."""

    logits: Float[Tensor, "batch *scores"]


class NoSegments(nn.Module):
    """Stands for the embedding of segments in a model that has none."""

    def forward(self, token_type_ids: Int[Tensor, "batch length"]) -> float:
        """Return 0.

        Raises:
            ValueError: for another segment than 0; checked on the CPU only, where it needs no synchronization.
        """
        if token_type_ids.device.type == "cpu" and not torch.compiler.is_compiling() and token_type_ids.any():
            raise ValueError("the model has segments=0: leave token_type_ids out")
        return 0.0


class Encoder(Model, config=EncoderConfig):
    """The encoder: tokens, positions and segments are added, normalized and passed through the blocks (§3).

    Args:
        pooler: whether to also make one vector of the whole input, from its first token.
    """

    __call__: Callable[..., EncoderOutput]  # nn.Module's own says Any

    def __init__(self, config: EncoderConfig, *, pooler: bool = True):
        super().__init__()
        self.config = EncoderConfig.checked(config)
        block = config.block
        self.embedding = TokenEmbedding(config.vocab_size, block.d_model, scaled=False)
        self.segment: nn.Module = NoSegments()
        if config.segments:
            self.segment = TokenEmbedding(
                config.segments, block.d_model, scaled=False, ids="token_type_ids", size="segments"
            )
        self.position = make_position(block.position, config.first_position + config.max_length, block.d_model)
        self.embedding_norm = block.norm.make(block.d_model)
        self.encoder = Stack(block, config.layers, max_length=config.max_length)
        if not config.first_norm:
            self.encoder.layers[0].self_attention_norm = nn.Identity()
        self.pooler = nn.Linear(block.d_model, block.d_model) if pooler else None
        initialize(self, config)

    def arguments(self) -> dict[str, Any]:
        return {"pooler": self.pooler is not None}

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "#batch length"] | None = None,
        mask: Mask | None = None,
        global_attention_mask: Int[Tensor, "batch length"] | None = None,
    ) -> EncoderOutput:
        """Read the input in both directions.

        Args:
            attention_mask: 1 = a real token, 0 = padding; None: all are real.
            token_type_ids: each token's segment; None: all are in segment 0.
            position_ids: each token's position; None: 0, 1, 2 …, including padding, or as the config says.
            mask: a further restriction of what positions see, such as `sliding_window(256)`.
            global_attention_mask: 1 = a token that sees everything and that everything sees, where the config's block
                has a `LongformerConfig` as its mixer.

        Raises:
            ValueError: for an id outside the config's sizes, for position_ids where positions are not added, and for an
                empty text where there is a pooler.
        """
        check_ids(input_ids, max_length=None if self.config.positions_after_pad else self.config.max_length)
        check_shape(token_type_ids, "token_type_ids", input_ids.shape)
        check_shape(position_ids, "position_ids", input_ids.shape, broadcast=True)
        if self.pooler is not None and not input_ids.shape[1]:
            raise ValueError(
                f"the pooler reads the first token, and input_ids of shape {tuple(input_ids.shape)} hold none; leave "
                "empty texts out, or make the encoder without it: Encoder(config, pooler=False)"
            )
        segment = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embedding(input_ids) + self.segment(segment)  # (batch, length, d_model)
        if position_ids is None and self.config.positions_after_pad:
            position_ids = self.positions_of(input_ids)
        if self.position is not None:
            x = self.position(x, position_ids=position_ids)
        elif position_ids is not None:
            name = name_of(self.config.block.position)
            raise ValueError(f"position={name!r} adds no positions: leave position_ids out")
        x = dropout(self.embedding_norm(x), self.config.block.dropout, self.training)
        mask = together(real_tokens(attention_mask, input_ids.shape), mask)
        if attention_mask is not None and global_attention_mask is not None:
            global_attention_mask = global_attention_mask * attention_mask  # padding is never global
        hidden = self.encoder(x, mask, global_attention_mask=global_attention_mask)
        pooled = None if self.pooler is None else self.pooler(hidden[:, 0]).tanh()
        return EncoderOutput(last_hidden_state=hidden, pooler_output=pooled)

    def positions_of(self, input_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """Return positions: real tokens count from pad_id + 1 on; padding has pad_id.

        Raises:
            ValueError: when there are more than max_length; checked on the CPU only, where it needs no synchronization.
        """
        real = (input_ids != self.config.pad_id).long()
        position = real.cumsum(dim=1) * real + self.config.pad_id
        limit = self.config.max_length
        if input_ids.shape[1] > limit and position.device.type == "cpu" and real.sum(dim=1).max() > limit:
            raise ValueError(
                f"learned positions end at max_length={limit}, but the sequence has {real.sum(dim=1).max()} tokens; "
                "raise max_length or shorten the sequence"
            )
        return position


class EncoderHead(Model):
    """An encoder with a task: subclasses compute scores from its vectors and may override the loss and the output.

    A task with other names for its labels lists them in `label_names`; `loss` then gets a tuple of all.

    Args:
        base: an encoder to build on, e.g. a pre-trained one; None for a new one.
    """

    label_names: ClassVar[tuple[str, ...]] = ("labels",)  # the keywords of `forward` that hold labels
    pooled = True  # whether the head reads the pooler's vector

    __call__: LabeledCall[HeadOutput[Tensor], HeadOutput]

    def __init__(self, config: EncoderConfig, base: Encoder | None = None):
        super().__init__()
        if base is not None and self.pooled and base.pooler is None:
            raise ValueError(f"{type(self).__name__} needs an encoder with a pooler: Encoder(config, pooler=True)")
        self.config = config
        self.base = Encoder(config, pooler=self.pooled) if base is None else base

    def marked(self, input_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"] | None:
        """Return the tokens that are global unless a call gives others (Beltagy et al. 2020, §3.1)."""
        if not isinstance(self.config.block.mixer, LongformerConfig):
            return None
        return self.global_tokens(input_ids)

    def global_tokens(self, input_ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"] | None:
        """Return the global tokens of the task; None unless a subclass overrides it."""
        return None

    def question_end(
        self, input_ids: Int[Tensor, "batch length"], instead: str = "global_attention_mask"
    ) -> Int[Tensor, "batch 1"]:
        """Return the position of the first separator.

        Args:
            instead: the argument to name in the error as an alternative.

        Raises:
            ValueError: when the config has no separator, or a sentence has none.
        """
        check_ids(input_ids)
        sep_id = self.config.sep_id
        if sep_id is None:
            raise ValueError(f"where the question ends is not known: set sep_id in the config, or give {instead}")
        separator = input_ids == sep_id
        if not separator.any(dim=1).all():
            number = int((~separator.any(dim=1)).nonzero()[0, 0])
            raise ValueError(f"sentence {number} has no separator, sep_id={sep_id}, after its question: give {instead}")
        return separator.long().argmax(dim=1, keepdim=True)

    def score(self, out: EncoderOutput) -> Any:
        """Return the logits: a tensor (batch, …), or a tuple where a task asks for several things."""
        raise NotImplementedError

    def loss(self, logits: Any, labels: Any) -> Float[Tensor, ""]:
        """Return the loss of these logits."""
        return cross_entropy(logits, labels)

    def output(self, logits: Any, loss: Float[Tensor, ""] | None) -> Any:
        """Return the model's output, in the field's names."""
        return HeadOutput(logits=logits, loss=loss)

    def chosen_labels(self, labels: dict[str, Any]) -> Any:
        """Return the labels that a call gives, a tuple where there are several; None where any is missing.

        Raises:
            TypeError: for any other keyword.
        """
        for name in labels.keys() - set(self.label_names):
            raise TypeError(f"{type(self).__name__} takes no {name}; its labels are {', '.join(self.label_names)}")
        values = tuple(labels.get(name) for name in self.label_names)
        if any(value is None for value in values):
            return None
        return values if len(values) > 1 else values[0]

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "#batch length"] | None = None,
        mask: Mask | None = None,
        global_attention_mask: Int[Tensor, "batch length"] | None = None,
        **labels: Tensor | None,
    ) -> Any:  # the result of `output`; `__call__` has its type
        """Return scores, and with labels their loss; other arguments as in `Encoder`.

        Args:
            global_attention_mask: None marks the task's own, where the config has projections for global tokens.
            labels: under the names in `label_names`.
        """
        targets = self.chosen_labels(labels)
        marked = self.marked(input_ids) if global_attention_mask is None else global_attention_mask
        logits = self.score(self.base(input_ids, attention_mask, token_type_ids, position_ids, mask, marked))
        return self.output(logits, None if targets is None else self.loss(logits, targets))

    def linear(self, outputs: int) -> nn.Linear:
        """Return a head's last layer."""
        layer = nn.Linear(self.config.block.d_model, outputs)
        initialize(layer, self.config)
        return layer

    def drop(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply dropout while training."""
        dropout_p = self.config.classifier_dropout
        return dropout(x, self.config.block.dropout if dropout_p is None else dropout_p, self.training)
