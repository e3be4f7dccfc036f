"""Bayesian factorisation machine (Freudenthaler et al. 2011), with what a user rated (Koren 2008)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, TablesConfig
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.targets import BINARY, REGRESSION


@dataclass(frozen=True, kw_only=True)
class BayesianFMConfig(TablesConfig):
    """A factorisation machine over ids and lists of ids, its weights drawn from their posterior by Gibbs sampling.

    Beside the ids of a row it knows, without being sent them, which items its user has in the training rows, and which
    users its item has. The row's own pair is among them, in training and in serving: it is not a label, as which pairs
    were rated does not tell how (noise as labels has an AUC of 0.5). What is served is one factorisation machine: the
    mean of all draws, in as many dimensions as `served_dim`. Its epochs share the sweeps; nothing is overfitted by more
    of them, so one epoch will do.

    Attributes:
        factors: dimensions of the vectors that are drawn.
        sweeps: times that all weights are drawn.
        burn_in: first sweeps, which are thrown away.
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
