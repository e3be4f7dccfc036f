"""The models. A new one is one file with a function `build`, and one line in `MODELS`; this file imports neither."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from training.config import TrainConfig
from workflows.errors import ConfigError, SpecError
from workflows.feature_spec import HISTORY, TARGET, FeatureSpec
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
        takes_histories: it scores an item against a history, and takes no other rows.
        uses_negatives: it learns from negative histories, if there are any.
    """

    backend: Backend
    module: str
    takes_histories: bool = False
    uses_negatives: bool = False


MODELS: Mapping[str, Model] = {
    "mlp": Model(backend=TENSORFLOW, module="training.models.mlp"),
    "dlrm": Model(backend=TENSORFLOW, module="training.models.dlrm"),
    "dcnv2": Model(backend=TENSORFLOW, module="training.models.dcnv2"),
    "din": Model(backend=TENSORFLOW, module="training.models.din", takes_histories=True),
    "dien": Model(backend=TENSORFLOW, module="training.models.dien", takes_histories=True, uses_negatives=True),
    "sim": Model(backend=TENSORFLOW, module="training.models.sim", takes_histories=True, uses_negatives=True),
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


def check_rows(spec: FeatureSpec, name: str) -> None:
    """Refuse rows that the model called `name` does not take.

    Raises:
        ConfigError: there is no such model.
        SpecError: the rows have histories that it does not take, or lack those that it takes.
    """
    takes_histories = model_named(name).takes_histories
    if takes_histories != spec.is_sequential:
        fitting = sorted(other for other, model in MODELS.items() if model.takes_histories == spec.is_sequential)
        got, expected = ("with", "without") if spec.is_sequential else ("without", "with")
        raise SpecError(
            f"model {name!r} takes rows {expected} a history and an item to score (channels {TARGET!r} and "
            f"{HISTORY!r}), the data has rows {got}: {sorted(spec.channels)}. Choose one of {', '.join(fitting)}."
        )


def learnt_from(spec: FeatureSpec, config: TrainConfig) -> FeatureSpec:
    """The columns that a model learns from: negative histories are read only by one that uses them.

    Raises:
        ConfigError: there is no such model.
    """
    return spec if model_named(config.model).uses_negatives and config.aux_weight else spec.for_scoring


def model_builder(name: str) -> ModelBuilder:
    """The builder called `name`; imports its framework.

    Raises:
        ConfigError: there is none.
    """
    builder: ModelBuilder = import_module(model_named(name).module).build
    return builder
