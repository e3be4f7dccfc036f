"""Configs of the models that consist only of per-id tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MAX_UNITS, TablesConfig, check_not_negative
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import FeatureSpec
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
    network: ClassVar[str] = "rankline.training.models.factorization.bayesian_fm:BayesianFM"
    tasks: ClassVar[tuple[str, ...]] = (BINARY, REGRESSION)

    factors: int = 8
    sweeps: int = 400
    burn_in: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "factors", maximum=MAX_UNITS)
        check_at_least(self, 1, "sweeps")
        check_choice(self, "burn_in", 0 <= self.burn_in < self.sweeps, f"at least 0 and below sweeps, {self.sweeps}")


@dataclass(frozen=True, kw_only=True)
class EASEConfig(TablesConfig):
    """Config for a linear model that recommends items to a user based on the items the user liked.

    It uses only the rows with a label of 1 and has a closed-form solution, so one epoch is enough. Its score ranks
    items; it is not the probability that the user likes an item, which `bayesian_fm` predicts.

    Attributes:
        regularization: weight of the squared item-to-item weights, λ of the paper.
        recency: when scoring, the latest row of a user has e^recency times the weight of the first one. 0 weights all
            rows equally. Rows are in the order of the files, which is chronological if the data is split by time.
        max_items: maximum number of items to learn, those that most users like; memory grows with its square.
    """

    name: ClassVar[str] = "ease"
    network: ClassVar[str] = "rankline.training.models.factorization.ease:EASE"

    served_dim: int = 128
    regularization: float = 200.0
    recency: float = 0.0
    max_items: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "max_items")
        check_choice(self, "regularization", 0 < self.regularization < math.inf, "a finite number above 0")
        check_not_negative(self, "recency")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """Add the memory for the square float64 matrix of items or of users, whichever is smaller."""
        num_ids = [feature.embedding_shape[0] for feature in spec.categorical if not feature.is_list]
        return {**super().num_weights(spec), "max_items": 2 * min(self.max_items, *num_ids) ** 2}
