"""The models included in Rankline. To add one, create a folder with its config and network, and add a line here.

A model of another package needs no line here: `TrainConfig` accepts its config, and `--model MODULE:CLASS` names it. If
the package declares an entry point in the group `rankline.models`, such as `tower = "shop.models:TowerConfig"`, the
short name works too, also in recipe files.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.metadata import entry_points

from rankline.training.models.auto import AutoConfig, CatBoostConfig, LinearConfig, RealMLPConfig
from rankline.training.models.config import ModelConfig
from rankline.training.models.factorization import BayesianFMConfig, EASEConfig
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.training.models.tabular import (
    DCNv2Config,
    DeepFMConfig,
    DLRMConfig,
    MLPConfig,
    MMoEConfig,
    TorchMLPConfig,
)
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.core.formatting import listed
from rankline.workflows.schema.feature_spec import HISTORY, TARGET, FeatureSpec

MODELS: Mapping[str, type[ModelConfig]] = {
    model.name: model
    for model in (
        MLPConfig,
        DLRMConfig,
        DCNv2Config,
        DeepFMConfig,
        MMoEConfig,
        DINConfig,
        DIENConfig,
        SIMConfig,
        TorchMLPConfig,
        AutoConfig,
        LinearConfig,
        CatBoostConfig,
        RealMLPConfig,
        LightGBMConfig,
        BayesianFMConfig,
        EASEConfig,
    )
}
TABLE_MODELS: Mapping[str, type[ModelConfig]] = {
    name: model for name, model in MODELS.items() if not model.takes_histories
}
"""The models for data without histories, which includes every recipe file."""

ENTRY_POINTS = "rankline.models"


def model_named(name: str) -> type[ModelConfig]:
    installed = {} if name in MODELS else {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    module, _, class_name = installed.get(name, name).partition(":")
    try:
        found = getattr(import_module(module), class_name) if class_name else MODELS[name]
    except (KeyError, ImportError, AttributeError, ValueError) as error:
        reason = f" ({error})" if class_name else ""
        raise ConfigError(
            f"unknown model {name!r}{reason}. Available: {', '.join(sorted([*MODELS, *installed]))}, or "
            "MODULE:CLASS for a subclass of ModelConfig."
        ) from None
    except TypeError as error:  # raised by the class definition
        raise ConfigError(f"model {name!r} cannot be defined: {error}.") from None
    if not (isinstance(found, type) and issubclass(found, ModelConfig)):
        raise ConfigError(f"{name} is {found!r}, expected a subclass of rankline.training.models.config.ModelConfig.")
    if lacking := [attribute for attribute in ("name", "network") if not hasattr(found, attribute)]:
        raise ConfigError(
            f"model {name!r} lacks {listed(lacking, 2)}. Define both as class variables, such as "
            'name: ClassVar[str] = "mine" and network: ClassVar[str] = "my_package.network:build".'
        )
    required = [field for field in fields(found) if field.init and field.default is field.default_factory is MISSING]
    if required:
        raise ConfigError(
            f"model {name!r} has {listed([field.name for field in required], 5)} without a default, expected a default "
            "for each field. Add one."
        )
    return found


def check_table(model: ModelConfig | type[ModelConfig]) -> None:
    """Raise `ConfigError` if the model cannot be used in a recipe file."""
    if model.takes_histories:
        raise ConfigError(
            f"model {model.name!r} requires a dataset with histories of items (that of amazon-din, or one defined in "
            f"Python), so it cannot be used in a recipe file. Choose one of {', '.join(sorted(TABLE_MODELS))}."
        )


def check_rows(spec: FeatureSpec, model: ModelConfig) -> None:
    if model.takes_histories != spec.is_sequential:
        fitting = sorted(name for name, other in MODELS.items() if _takes_rows(other, spec))
        got, expected = ("with", "without") if spec.is_sequential else ("without", "with")
        raise SpecError(
            f"model {model.name!r} requires rows {expected} a history and an item to score (channels {TARGET!r} and "
            f"{HISTORY!r}), but the data has rows {got} them (channels: {sorted(spec.channels)}). Choose one of "
            f"{', '.join(fitting)}."
        )
    heads = spec.heads
    if foreign := next((head for head in heads if head.task not in model.tasks), None):
        others = _others(spec, lambda other: all(head.task in other.tasks for head in heads))
        raise SpecError(
            f"model {model.name!r} supports task {' or '.join(model.tasks)}, but the task of label "
            f"{foreign.column!r} is {foreign.task}. {others}"
        )
    if len(heads) > 1 and not model.takes_several_heads:
        others = _others(spec, lambda other: other.takes_several_heads)
        raise SpecError(
            f"model {model.name!r} supports one label, but the data has {[head.column for head in heads]}. {others}"
        )


def check_memory(spec: FeatureSpec, model: ModelConfig, *, copies: int, num_bytes: int) -> None:
    """Raise `ConfigError` if the model needs more than `num_bytes`, given `copies` float32 values per weight.

    The message names the column or option with the most weights.
    """
    weights = model.num_weights(spec)
    needed = 4 * copies * sum(weights.values())
    if needed > num_bytes:
        largest = max(weights, key=weights.__getitem__)
        raise ConfigError(
            f"model {model.name!r} needs {needed / 1e9:,.1f} GB for its weights and optimizer state, including "
            f"{4 * copies * weights[largest] / 1e9:,.1f} GB for {largest}, but only {num_bytes / 1e9:,.1f} GB are "
            "free. Use smaller layers or embeddings, a higher frequency_threshold or fewer hash_buckets."
        )


def _takes_rows(model: type[ModelConfig], spec: FeatureSpec) -> bool:
    return model.takes_histories == spec.is_sequential


def _others(spec: FeatureSpec, fits: Callable[[type[ModelConfig]], bool]) -> str:
    names = sorted(name for name, other in MODELS.items() if _takes_rows(other, spec) and fits(other))
    return f"Choose one of {', '.join(names)}." if names else "No built-in model supports it."
