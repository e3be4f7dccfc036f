"""MMoE (Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts")."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import TabularConfig, check_units
from rankline.workflows.core.validation import check_at_least
from rankline.workflows.schema.feature_spec import FeatureSpec

_MOST_EXPERTS = 1_000


@dataclass(frozen=True, kw_only=True)
class MMoEConfig(TabularConfig):
    """All labels share the same experts, and each has its own gate and tower.

    Attributes:
        hidden: units of the dense layers of each expert.
        experts: number of experts.
        tower: units of the dense layers of each head, after the experts.
    """

    name: ClassVar[str] = "mmoe"
    network: ClassVar[str] = "rankline.training.models.mmoe.network:build"

    hidden: tuple[int, ...] = (128, 64)
    experts: int = 4
    tower: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "experts", most=_MOST_EXPERTS)
        check_units(self, "tower")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        known = super().num_weights(spec)
        return {**known, "hidden": self.experts * known["hidden"]}
