"""DIEN (Zhou et al. 2019, arXiv:1809.03672)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, SequentialConfig, check_not_negative, check_units
from rankline.workflows.core.validation import check_at_least
from rankline.workflows.schema.feature_spec import FeatureSpec


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(SequentialConfig):
    """A model in which interests evolve over the latest items, as in DIEN.

    Attributes:
        short_history: number of latest items that are the short history; those before are the long one.
        gru_units: units of the two recurrent layers over the short history.
        aux_hidden: units of the dense layers of the auxiliary loss.
        aux_weight: weight of the auxiliary loss; 0 leaves it out, and negative histories with it.
    """

    short_history: int = 10
    gru_units: int = 96
    aux_hidden: tuple[int, ...] = (100, 50)
    aux_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "short_history", "gru_units", most=MOST_UNITS)
        check_units(self, "aux_hidden")
        check_not_negative(self, "aux_weight")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """With those of the recurrent layers: three gates in each of two."""
        return {**super().num_weights(spec), "gru_units": 6 * self.gru_units**2}

    @property
    def uses_negatives(self) -> bool:
        """For the auxiliary loss."""
        return self.aux_weight > 0


@dataclass(frozen=True, kw_only=True)
class DIENConfig(EvolutionConfig):
    """Interests that evolve over the latest items; those before them are left out."""

    name: ClassVar[str] = "dien"
    network: ClassVar[str] = "rankline.training.models.sequential.dien.network:build"
