"""The multilayer perceptron of NVTabular's MovieLens examples."""

import math
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, TabularConfig
from rankline.workflows.core.validation import check_at_least, check_choice


@dataclass(frozen=True, kw_only=True)
class MLPConfig(TabularConfig):
    """Embeddings and numbers side by side, then dense layers.

    Attributes:
        number_dim: width of a vector added for each number, computed from waves with learned frequencies; 0 adds none.
        number_frequencies: number of frequencies per number.
        number_scale: standard deviation of the initial frequencies; larger values distinguish finer differences.
    """

    name: ClassVar[str] = "mlp"
    network: ClassVar[str] = "rankline.training.models.mlp.network:build"

    number_dim: int = 0
    number_frequencies: int = 16
    number_scale: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "number_dim", most=MOST_UNITS)
        check_at_least(self, 1, "number_frequencies", most=MOST_UNITS)
        check_choice(self, "number_scale", 0 < self.number_scale < math.inf, "a finite number above 0")
