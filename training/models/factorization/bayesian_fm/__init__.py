"""Bayesian factorization machine (Freudenthaler et al. 2011) with implicit feedback (Koren 2008)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, TablesConfig
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.targets import BINARY, REGRESSION


@dataclass(frozen=True, kw_only=True)
class BayesianFMConfig(TablesConfig):
    """A factorization machine over ids and lists of ids, fitted by Gibbs sampling of its weights.

    In addition to the ids of a row, the model knows which items the user has in the training rows, and which users the
    item has. These include the pair of the row itself, both in training and in serving. This does not leak the label:
    which pairs were rated does not tell the rating (with random labels the AUC is 0.5). The exported model is a single
    factorization machine, the mean of all draws, with `served_dim` dimensions. The epochs divide the sweeps among them;
    more sweeps do not overfit, so one epoch is enough.

    Attributes:
        factors: dimension of the vectors that are drawn.
        sweeps: number of times that all weights are drawn.
        burn_in: number of initial sweeps to discard.
    """

    name: ClassVar[str] = "bayesian_fm"
    network: ClassVar[str] = "rankline.training.models.factorization.bayesian_fm.network:build"
    tasks: ClassVar[tuple[str, ...]] = (BINARY, REGRESSION)

    factors: int = 8
    sweeps: int = 400
    burn_in: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "factors", most=MOST_UNITS)
        check_at_least(self, 1, "sweeps")
        check_choice(self, "burn_in", 0 <= self.burn_in < self.sweeps, f"at least 0 and below sweeps, {self.sweeps}")
