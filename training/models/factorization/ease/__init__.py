"""Linear autoencoder of items (Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data")."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import TablesConfig, check_not_negative
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import FeatureSpec


@dataclass(frozen=True, kw_only=True)
class EASEConfig(TablesConfig):
    """What a user likes next, of all items: each item by the other items that the user liked.

    It learns from the rows with a label of 1 alone, in closed form, so one epoch will do. Its score puts items in an
    order; it is not the probability that the user likes an item, which `bayesian_fm` says.

    Attributes:
        regularization: weight of the squared weights from item to item, λ of the paper.
        recency: the latest row of a user counts e^recency times as much as the first one when items are scored. 0 for
            all rows alike. Rows are in the order of the files, which is that of time where data is split by time.
        max_items: items that are learned, those that most users like; memory is that of their square.
    """

    name: ClassVar[str] = "ease"
    network: ClassVar[str] = "rankline.training.models.factorization.ease.network:EASE"

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
        """With the square of the items or the users, whichever are fewer, in twice the precision."""
        num_ids = [feature.embedding_shape[0] for feature in spec.categorical if not feature.is_list]
        return {**super().num_weights(spec), "max_items": 2 * min(self.max_items, *num_ids) ** 2}
