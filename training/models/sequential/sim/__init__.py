"""SIM (Pi et al. 2020, arXiv:2006.05639)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, check_units
from rankline.training.models.sequential.dien import EvolutionConfig
from rankline.workflows.core.validation import check_at_least, check_choice

SOFT, HARD = SEARCHES = ("soft", "hard")


@dataclass(frozen=True, kw_only=True)
class SIMConfig(EvolutionConfig):
    """A search in the long history, attention over its results, and DIEN over the short history.

    Attributes:
        search: "soft" keeps the items with the highest attention, "hard" the latest items that share the candidate's
            last feature, such as its category.
        num_searched: number of items that the search over the long history keeps.
        stage_one_hidden: units of the dense layers after a soft search over the long history.
    """

    name: ClassVar[str] = "sim"
    network: ClassVar[str] = "rankline.training.models.sequential.sim.network:build"

    search: str = SOFT
    num_searched: int = 50
    stage_one_hidden: tuple[int, ...] = (200,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "search", self.search in SEARCHES, " or ".join(SEARCHES))
        check_at_least(self, 1, "num_searched", most=MOST_UNITS)
        check_units(self, "stage_one_hidden")
