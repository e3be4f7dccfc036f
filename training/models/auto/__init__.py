"""Models for a table of numbers and categories that learn all rows at once, and the choice among them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rankline.training.models.config import MAX_UNITS, ModelConfig
from rankline.training.models.frameworks import PORTFOLIO, Framework
from rankline.workflows.core.optional_packages import require
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.targets import TASKS

LINEAR, LIGHTGBM, CATBOOST, REALMLP = LEARNERS = ("linear", "lightgbm", "catboost", "realmlp")
_USUAL_S, _USUAL_VALUES = 60.0, 1e6


def left_out(compared: Mapping[str, Any]) -> list[str]:
    """Say which models were left out of a comparison, as stored under `compared` in a model's manifest, and why."""
    return [f"{one['name']} was left out: {one['problem']}" for one in compared["candidates"] if one["problem"]]


@dataclass(frozen=True, kw_only=True)
class PortfolioConfig(ModelConfig):
    """Config for models that learn all rows at once, which are kept in memory. Options about epochs, steps and
    gradients do not apply.

    Attributes:
        list_ids: number of the most frequent ids of a list to distinguish.
    """

    network: ClassVar[str] = "rankline.training.models.auto.portfolio:Portfolio"
    framework: ClassVar[Framework] = PORTFOLIO
    tasks: ClassVar[tuple[str, ...]] = TASKS
    learners: ClassVar[tuple[str, ...]]

    list_ids: int = 64

    def __post_init__(self) -> None:
        check_at_least(self, 1, "list_ids", maximum=MAX_UNITS)

    def limit_s(self, num_values: int) -> float:  # noqa: ARG002  (for `auto`)
        """Return the time limit in seconds for a table with that many values."""
        return math.inf

    def check_packages(self) -> None:
        """Raise `MissingExtraError` if the only learner is not installed. A comparison leaves out what is missing."""
        if self.learners == (CATBOOST,):
            require(CATBOOST, feature=f"training {self.name!r}", extra=CATBOOST)


@dataclass(frozen=True, kw_only=True)
class AutoConfig(PortfolioConfig):
    """Config for the best of several models on rows held out from training, or a blend of up to three of them.

    They are logistic or ridge regression, LightGBM, CatBoost and a neural network. The validation rows take no part in
    the choice.

    Attributes:
        time_limit: seconds to compare and train models. 0 allows 60 seconds per million values, and at least 60.
    """

    name: ClassVar[str] = "auto"
    learners: ClassVar[tuple[str, ...]] = LEARNERS

    time_limit: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "time_limit", 0 <= self.time_limit < math.inf, "a finite number of at least 0")

    def limit_s(self, num_values: int) -> float:
        return self.time_limit or _USUAL_S * max(1.0, num_values / _USUAL_VALUES)


@dataclass(frozen=True, kw_only=True)
class LinearConfig(PortfolioConfig):
    """Config for logistic or ridge regression on standardized numbers and one weight per id. The strength of the
    penalty is chosen on rows held out from training."""

    name: ClassVar[str] = LINEAR
    learners: ClassVar[tuple[str, ...]] = (LINEAR,)


@dataclass(frozen=True, kw_only=True)
class CatBoostConfig(PortfolioConfig):
    """Config for CatBoost's trees with their defaults, on numbers and on the mean label of each id. The number of
    trees is chosen on rows held out from training."""

    name: ClassVar[str] = CATBOOST
    learners: ClassVar[tuple[str, ...]] = (CATBOOST,)


@dataclass(frozen=True, kw_only=True)
class RealMLPConfig(PortfolioConfig):
    """Config for a multilayer perceptron with the defaults of RealMLP-TD. The number of steps depends on the number of
    rows and is chosen on rows held out from training."""

    name: ClassVar[str] = REALMLP
    learners: ClassVar[tuple[str, ...]] = (REALMLP,)
