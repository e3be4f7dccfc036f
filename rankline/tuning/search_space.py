"""Search space of `rankline tune`: one line per setting.

It excludes the number of epochs: the rows that judge a trial also determine its best epoch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from rankline.training.config.train import TrainConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.formatting import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range from `low` to `high`, of integers if both bounds are integers. `is_log` enables log-scale sampling."""

    low: float
    high: float
    is_log: bool = False

    @property
    def is_choice(self) -> bool:
        return self.low < self.high


@dataclass(frozen=True, kw_only=True)
class OneOf:
    values: tuple[Any, ...]

    @property
    def is_choice(self) -> bool:
        return len(self.values) > 1


Values: TypeAlias = "Range | OneOf"


def _around(factor: float) -> Callable[[Any], Values]:
    return lambda value: Range(low=value / factor, high=value * factor, is_log=True)


def _sizes(*factors: float) -> Callable[[Any], Values]:
    return lambda value: OneOf(values=tuple(dict.fromkeys(max(1, int(value * factor)) for factor in factors)))


def _wider(*factors: float) -> Callable[[Any], Values]:
    return lambda units: OneOf(
        values=tuple(dict.fromkeys(tuple(max(1, int(unit * factor)) for unit in units) for factor in factors))
    )


def _from(low: float, high: float, *, is_log: bool = False) -> Callable[[Any], Values]:
    return lambda value: Range(low=min(low, value), high=max(high, value), is_log=is_log)


_OF_STEPS: Mapping[str, Callable[[Any], Values]] = {
    "learning_rate": _around(10),
    "batch_size": _sizes(0.25, 0.5, 1, 2, 4),
}
"""Settings of models that train step by step."""
_OF_MODELS: Mapping[str, Callable[[Any], Values]] = {
    "embedding_dim_cap": _sizes(0.5, 1, 2),
    "embedding_dropout": _from(0.0, 0.5),
    "dropout": _from(0.0, 0.5),
    "l2_embedding": _from(0.0, 0.1),
    "hidden": _wider(0.5, 1, 2),
    "top_mlp": _wider(0.5, 1, 2),
    "cross_layers": _from(1, 5),
    "factors": _from(4, 16),
    "regularization": _around(10),
    "experts": _from(2, 8),
    "gru_units": _sizes(0.5, 1, 2),
    "leaves": _from(7, 255, is_log=True),
    "shrinkage": _from(0.02, 0.3, is_log=True),
    "min_leaf_rows": _from(5, 200, is_log=True),
    "feature_share": _from(0.4, 1.0),
}


def search_space(config: TrainConfig, only: tuple[str, ...] = ()) -> dict[str, Values]:
    found = _OF_STEPS if config.model.framework.learns_in_steps else {}
    of_model = {field.name for field in fields(config.model)}
    made = {name: values(getattr(config, name)) for name, values in found.items()}
    made |= {name: values(getattr(config.model, name)) for name, values in _OF_MODELS.items() if name in of_model}
    if not made:
        raise ConfigError(f"model {config.model.name!r} has no options to tune. Choose another model.")
    if unknown := [name for name in only if name not in made]:
        raise ConfigError(
            f"{', '.join(unknown)} cannot be tuned for model {config.model.name!r}.{did_you_mean(unknown, made)} "
            f"Available: {', '.join(made)}."
        )
    return {name: made[name] for name in only or made if made[name].is_choice}
