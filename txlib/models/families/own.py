"""txlib's own format: any model of ours under our own names, for what no published format can say."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from txlib.models.bytenet import ByteNet, ByteNetConfig
from txlib.models.conv_seq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from txlib.models.convnet import ConvNet, ConvNetConfig
from txlib.models.encoder import Encoder, EncoderConfig
from txlib.models.families.bert import BERT, CLASSIFIERS
from txlib.models.families.big_bird import BIG_BIRD
from txlib.models.families.family import TENSORS, Family, Head, Settings
from txlib.models.gpt import GPT, GPTConfig
from txlib.models.music import MusicConfig, MusicTransformer
from txlib.models.perceiver import (
    Perceiver,
    PerceiverClassifier,
    PerceiverClassifierConfig,
    PerceiverConfig,
    PerceiverForMaskedLM,
    PerceiverIO,
    PerceiverIOConfig,
    PerceiverLMConfig,
)
from txlib.models.seq2seq import Seq2Seq, Seq2SeqConfig
from txlib.models.set_transformer import DeepSets, DeepSetsConfig, SetTransformer, SetTransformerConfig
from txlib.models.stack import ModelConfig
from txlib.models.transformer import Transformer, TransformerConfig
from txlib.models.universal import UniversalGPT, UniversalGPTConfig, UniversalTransformer, UniversalTransformerConfig
from txlib.models.vit import ViT, ViTConfig, ViTForImageClassification

CONFIGS: dict[type[nn.Module], Any] = {
    GPT: GPTConfig,
    MusicTransformer: MusicConfig,
    Transformer: TransformerConfig,
    Seq2Seq: Seq2SeqConfig,
    UniversalTransformer: UniversalTransformerConfig,
    UniversalGPT: UniversalGPTConfig,
    ConvSeq2Seq: ConvSeq2SeqConfig,
    ByteNet: ByteNetConfig,
    ConvNet: ConvNetConfig,
    SetTransformer: SetTransformerConfig,
    DeepSets: DeepSetsConfig,
    ViT: ViTConfig,
    ViTForImageClassification: ViTConfig,
    Perceiver: PerceiverConfig,
    PerceiverIO: PerceiverIOConfig,
    PerceiverForMaskedLM: PerceiverLMConfig,
    PerceiverClassifier: PerceiverClassifierConfig,
}
CONFIGS |= {head.model: EncoderConfig for family in (BERT, BIG_BIRD) for head in family.heads.values()}
BESIDE_THE_CONFIG = ("model_type", "architectures", "dtype", "arguments", TENSORS)


class OwnFamily(Family):
    """config.json is the model's config itself, and the name of its class."""

    def read(self, settings: Settings) -> ModelConfig:
        """The config.

        Raises:
            ValueError: when it has fields that this version does not know.
        """
        config: type[ModelConfig] = CONFIGS[self.head(settings).model]
        return config.from_dict({name: value for name, value in settings.items() if name not in BESIDE_THE_CONFIG})

    def write(self, model: nn.Module) -> dict[str, Any]:
        """The config, and what the class takes beside it."""
        name, _ = self.head_of(model)
        arguments: dict[str, Any] = {}
        config: Any = model.config
        if isinstance(model, Encoder | ViT):
            arguments = {"pooler": model.pooler is not None}
        elif isinstance(model, (*CLASSIFIERS, ViTForImageClassification)):
            arguments = {"labels": model.classifier.out_features}
        return {
            "architectures": [name],
            "model_type": self.model_type,
            "arguments": arguments,
            **config.to_dict(),
        }

    def table(self, model: nn.Module, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Each tensor under the name that it has in the model. Whole numbers only count, as batches in a norm."""
        return ((name, "same", (name,)) for name, each in model.state_dict().items() if each.is_floating_point())


OWN = OwnFamily(
    "txlib",
    ModelConfig,
    settings=(),
    names=(),
    ignored=(r"base\.pooler\.\w+",),  # of a base that a head does not read
    heads={kind.__name__: Head(kind, lambda settings: settings.get("arguments") or {}) for kind in CONFIGS},
)
