"""What every model shares: it is saved and loaded by the name of its class."""

from typing import Any, ClassVar

from torch import nn

from txlib.models.stack import ModelConfig

MODELS: dict[str, type["Model"]] = {}  # by the name of the class, which a checkpoint's `architectures` holds


class Model(nn.Module):
    """A model with a config. A subclass that names the config's class can be saved and loaded:

        class GPT(Model, config=GPTConfig):
            def __init__(self, config: GPTConfig): ...

    Raises:
        TypeError: when another module has a model of the same name.
    """

    config_class: ClassVar[type[ModelConfig]]

    def __init_subclass__(cls, config: type[ModelConfig] | None = None, **keywords: Any):
        super().__init_subclass__(**keywords)
        if config is None:
            return
        taken = MODELS.get(cls.__name__)
        if taken is not None and taken.__module__ != cls.__module__:
            raise TypeError(f"{taken.__module__} has a model {cls.__name__} already; choose another name")
        cls.config_class = config
        MODELS[cls.__name__] = cls

    def arguments(self) -> dict[str, Any]:
        """Return the class's other arguments besides the config, as JSON can hold them."""
        return {}
