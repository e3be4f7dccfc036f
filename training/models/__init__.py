"""The models. A new one is one file and one line in `MODELS`."""

from collections.abc import Mapping

from training.models.base import ModelBuilder
from training.models.mlp import build_mlp
from workflows.errors import ConfigError

MODELS: Mapping[str, ModelBuilder] = {"mlp": build_mlp}


def model_builder(name: str) -> ModelBuilder:
    """The builder called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in MODELS:
        raise ConfigError(f"model is {name!r}. Available: {', '.join(sorted(MODELS))}.")
    return MODELS[name]
