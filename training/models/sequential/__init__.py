"""Configs of the models that score an item against a history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MAX_UNITS, SequentialConfig, check_not_negative, check_units
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import FeatureSpec

SOFT, HARD = SEARCHES = ("soft", "hard")


@dataclass(frozen=True, kw_only=True)
class DINConfig(SequentialConfig):
    """Config for DIN, in which the candidate attends to the whole history."""

    name: ClassVar[str] = "din"
    network: ClassVar[str] = "rankline.training.models.sequential.network:build_din"


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig(SequentialConfig):
    """Base config for models of how a user's interests evolve over the latest items, as in DIEN.

    Attributes:
        short_history: number of latest items in the short history; earlier items are the long history.
        gru_units: units of the two recurrent layers over the short history.
        aux_hidden: units of the dense layers of the auxiliary loss.
        aux_weight: weight of the auxiliary loss; 0 disables it, and the use of negative histories.
    """

    short_history: int = 10
    gru_units: int = 96
    aux_hidden: tuple[int, ...] = (100, 50)
    aux_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "short_history", "gru_units", maximum=MAX_UNITS)
        check_units(self, "aux_hidden")
        check_not_negative(self, "aux_weight")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """Include the weights of the two recurrent layers, which have three gates each."""
        return {**super().num_weights(spec), "gru_units": 6 * self.gru_units**2}

    @property
    def uses_negatives(self) -> bool:
        return self.aux_weight > 0


@dataclass(frozen=True, kw_only=True)
class DIENConfig(EvolutionConfig):
    """Config for DIEN, which models how interests evolve over the most recent items. Earlier items are ignored."""

    name: ClassVar[str] = "dien"
    network: ClassVar[str] = "rankline.training.models.sequential.network:build_dien"


@dataclass(frozen=True, kw_only=True)
class SIMConfig(EvolutionConfig):
    """Config for SIM: search in the long history, attention over its results, and DIEN over the short history.

    Attributes:
        search: "soft" keeps the items with the highest attention, "hard" the latest items that share the candidate's
            last feature, such as its category.
        num_searched: number of items that the search over the long history keeps.
        stage_one_hidden: units of the dense layers after a soft search over the long history.
    """

    name: ClassVar[str] = "sim"
    network: ClassVar[str] = "rankline.training.models.sequential.network:build_sim"

    search: str = SOFT
    num_searched: int = 50
    stage_one_hidden: tuple[int, ...] = (200,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "search", self.search in SEARCHES, " or ".join(SEARCHES))
        check_at_least(self, 1, "num_searched", maximum=MAX_UNITS)
        check_units(self, "stage_one_hidden")
