"""Gradient boosted trees by LightGBM (Ke et al. 2017)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MAX_UNITS, ModelConfig, check_not_negative
from rankline.training.models.frameworks import LIGHTGBM, Framework
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.targets import TASKS

_MAX_LEAVES = 131_072  # LightGBM's limit


@dataclass(frozen=True, kw_only=True)
class LightGBMConfig(ModelConfig):
    """Config for LightGBM forests, one per label. Features are numbers, frequency-ordered ids, and id counts of lists.

    All rows are kept in memory. The epochs divide the trees among them, and the validation rows are scored after each.
    Options about steps and gradients, such as `optimizer` and `learning_rate`, do not apply.

    Attributes:
        trees: number of trees per label, and per class if there are several.
        leaves: maximum number of leaves of a tree.
        shrinkage: factor on the contribution of each tree.
        min_leaf_rows: minimum number of rows of a leaf.
        l2_leaves: weight of the squared leaf values in the loss.
        feature_share: fraction of the features that each tree may use.
        list_ids: number of the most frequent ids of a list to distinguish.
    """

    name: ClassVar[str] = "lightgbm"
    network: ClassVar[str] = "rankline.training.models.lightgbm.network:Forests"
    framework: ClassVar[Framework] = LIGHTGBM
    tasks: ClassVar[tuple[str, ...]] = TASKS
    takes_several_heads: ClassVar[bool] = True

    trees: int = 100
    leaves: int = 31
    shrinkage: float = 0.1
    min_leaf_rows: int = 20
    l2_leaves: float = 0.0
    feature_share: float = 1.0
    list_ids: int = 256

    def __post_init__(self) -> None:
        check_at_least(self, 1, "trees", "min_leaf_rows")
        check_at_least(self, 1, "list_ids", maximum=MAX_UNITS)
        check_at_least(self, 2, "leaves", maximum=_MAX_LEAVES)
        check_choice(self, "shrinkage", 0 < self.shrinkage < math.inf, "a finite number above 0")
        check_choice(self, "feature_share", 0 < self.feature_share <= 1, "above 0 and at most 1")
        check_not_negative(self, "l2_leaves")
