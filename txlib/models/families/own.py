"""txlib's format: any of its models under its own names, for those that no published format can describe."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from txlib.models.families.family import TENSORS, Family, Head, Settings
from txlib.models.model import MODELS, Model
from txlib.models.stack import ModelConfig

NOT_IN_THE_CONFIG = ("model_type", "architectures", "dtype", "arguments", TENSORS)


class OwnFamily(Family):
    """A config.json of the model's config and the name of its class, one of `MODELS`."""

    def head(self, settings: Settings) -> Head:
        """Return the class that `architectures` names; see `find_model`."""
        return Head(find_model(settings), lambda settings: settings.get("arguments") or {})

    def head_of(self, model: nn.Module) -> tuple[str, Head]:
        """Return the class of the model, and its name.

        Raises:
            LookupError: when it cannot be loaded by its name.
        """
        name = type(model).__name__
        if MODELS.get(name) is not type(model):
            raise LookupError(f"{self.model_type} has no {name}")
        return name, Head(MODELS[name])

    def read(self, settings: Settings) -> ModelConfig:
        """Return the config.

        Raises:
            ValueError: for fields that this version does not know.
        """
        config = find_model(settings).config_class
        return config.from_dict({name: value for name, value in settings.items() if name not in NOT_IN_THE_CONFIG})

    def write(self, model: nn.Module) -> dict[str, Any]:
        """Return the config, the class and its other arguments."""
        name, _ = self.head_of(model)
        config: Any = model.config
        assert isinstance(model, Model)  # `head_of` refuses others
        return {
            "architectures": [name],
            "model_type": self.model_type,
            "arguments": model.arguments(),
            **config.to_dict(),
        }

    def table(self, model: nn.Module, *, bare: bool) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Return each tensor under its name in the model; not whole numbers, such as a norm's count of batches."""
        return ((name, "same", (name,)) for name, value in model.state_dict().items() if value.is_floating_point())


def find_model(settings: Settings) -> type[Model]:
    """Return the class that `architectures` names.

    Raises:
        KeyError: for a missing entry.
        ValueError: for an unknown class.
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
