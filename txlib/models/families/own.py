"""txlib's own format: any model of ours under our own names, for what no published format can say."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from txlib.models.families.family import TENSORS, Family, Head, Settings
from txlib.models.model import MODELS, Model
from txlib.models.stack import ModelConfig

BESIDE_THE_CONFIG = ("model_type", "architectures", "dtype", "arguments", TENSORS)


class OwnFamily(Family):
    """config.json is the model's config itself, and the name of its class, one of `MODELS`."""

    def head(self, settings: Settings) -> Head:
        """The class that `architectures` names; see `find_model`."""
        return Head(find_model(settings), lambda settings: settings.get("arguments") or {})

    def head_of(self, model: nn.Module) -> tuple[str, Head]:
        """The class of the model, and its name.

        Raises:
            LookupError: when it cannot be loaded by its name.
        """
        name = type(model).__name__
        if MODELS.get(name) is not type(model):
            raise LookupError(f"{self.model_type} has no {name}")
        return name, Head(MODELS[name])

    def read(self, settings: Settings) -> ModelConfig:
        """The config.

        Raises:
            ValueError: when it has fields that this version does not know.
        """
        config = find_model(settings).config_class
        return config.from_dict({name: value for name, value in settings.items() if name not in BESIDE_THE_CONFIG})

    def write(self, model: nn.Module) -> dict[str, Any]:
        """The config, and what the class takes beside it."""
        name, _ = self.head_of(model)
        config: Any = model.config
        assert isinstance(model, Model)  # `head_of` sees to it
        return {
            "architectures": [name],
            "model_type": self.model_type,
            "arguments": model.arguments(),
            **config.to_dict(),
        }

    def table(self, model: nn.Module, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Each tensor under the name that it has in the model. Whole numbers only count, as batches in a norm."""
        return ((name, "same", (name,)) for name, each in model.state_dict().items() if each.is_floating_point())


def find_model(settings: Settings) -> type[Model]:
    """Return the class that `architectures` names.

    Raises:
        KeyError: when there is no such entry.
        ValueError: when there is no such class.
    """
    name = settings["architectures"][0]
    if name not in MODELS:
        raise ValueError(f"architecture {name!r} is unknown; txlib has {', '.join(MODELS)}")
    return MODELS[name]


OWN = OwnFamily(
    "txlib",
    ModelConfig,
    settings=(),
    names=(),
    ignored=(r"base\.pooler\.\w+",),  # of a base that a head does not read
    heads={},
)
