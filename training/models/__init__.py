"""The models. A new one is one file with a function `build`, and one line in `MODELS`; this file imports neither."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from training.config import TrainConfig
from workflows.errors import ConfigError
from workflows.feature_spec import FeatureSpec
from workflows.trained import PYTORCH, TENSORFLOW, Backend


class ModelBuilder(Protocol):
    """Makes a model for `training.fit_tensorflow` or `training.fit_torch`, which say what they ask of it."""

    def __call__(self, spec: FeatureSpec, config: TrainConfig) -> Any:
        """Build the model for the features of `spec`."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Where a model is.

    Attributes:
        backend: what it is trained with and served by.
        module: module with its `build`, a `ModelBuilder`.
    """

    backend: Backend
    module: str


MODELS: Mapping[str, Model] = {
    "mlp": Model(backend=TENSORFLOW, module="training.models.mlp"),
    "dlrm": Model(backend=TENSORFLOW, module="training.models.dlrm"),
    "dcnv2": Model(backend=TENSORFLOW, module="training.models.dcnv2"),
    "torch_mlp": Model(backend=PYTORCH, module="training.models.torch_mlp"),
}


def model_named(name: str) -> Model:
    """The entry called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in MODELS:
        raise ConfigError(f"model is {name!r}. Available: {', '.join(sorted(MODELS))}.")
    return MODELS[name]


def model_builder(name: str) -> ModelBuilder:
    """The builder called `name`; imports its framework.

    Raises:
        ConfigError: there is none.
    """
    builder: ModelBuilder = import_module(model_named(name).module).build
    return builder
