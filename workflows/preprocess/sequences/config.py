"""Options of `prepare` for rows with histories. Fast to import: the command line derives its options from them."""

from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import LONGEST_PADDED, MOST_SEED, check_at_least

HOLDOUTS = ("last", "second-last")
ATTRIBUTES = ("none", "category", "all")
_MOST_NEGATIVES = 10_000  # each adds one row per positive row


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """How interactions are converted to rows with histories. The defaults are the corrected variant.

    The reference (NVIDIA's SIM for TensorFlow 2) uses `min_interactions` 20 and `own_items`: docs/reference/amazon.md.

    Attributes:
        min_interactions: exclude users with fewer interactions.
        max_history: maximum number of previous items per row; the latest are kept.
        min_history: minimum number of previous items; interactions with fewer give no row.
        negatives: number of negative training rows, with items that the user did not choose, per positive row. Scores
            are calibrated for one negative per positive, as in validation.
        negative_history: add as many unchosen items to each training row as its history has, for the auxiliary loss of
            DIEN and SIM.
        own_items: draw negatives from all items, including the user's own history, as the reference does.
        holdout: "last" validates on each user's last item and trains on all items before it; "second-last" ignores the
            last item and validates on the one before it, to tune options without using the last item.
        negative_seed: random seed for negatives.
        attributes: attributes of an item that the model sees in addition to its id: "none", "category", or "all" for
            brand, parent category and category, if the files have them.
    """

    min_interactions: int = 5
    max_history: int = 100
    min_history: int = 1
    negatives: int = 1
    negative_history: bool = True
    own_items: bool = False
    holdout: str = "last"
    negative_seed: int = 42
    attributes: str = "category"

    def __post_init__(self) -> None:
        check_at_least(self, 3, "min_interactions")
        check_at_least(self, 1, "max_history", "min_history", most=LONGEST_PADDED)
        check_at_least(self, 1, "negatives", most=_MOST_NEGATIVES)
        check_at_least(self, 0, "negative_seed", most=MOST_SEED)
        if self.max_history < self.min_history:
            raise ConfigError(f"max_history is {self.max_history}, below min_history, which is {self.min_history}.")
        if self.holdout not in HOLDOUTS:
            raise ConfigError(f"holdout is {self.holdout!r}. Available: {', '.join(HOLDOUTS)}.")
        if self.attributes not in ATTRIBUTES:
            raise ConfigError(f"attributes is {self.attributes!r}. Available: {', '.join(ATTRIBUTES)}.")
