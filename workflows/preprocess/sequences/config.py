"""The choices of `prepare` for data with histories, light to import: the command line makes options of them."""

from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import LONGEST_PADDED, MOST_SEED, check_at_least

HOLDOUTS = ("last", "second-last")
ATTRIBUTES = ("none", "category", "all")
_MOST_NEGATIVES = 10_000  # each is a row more for each row


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """How the interactions of users become rows with histories. The defaults are the corrected variant.

    The reference (NVIDIA's SIM for TensorFlow 2) has `min_interactions` 20 and `own_items`: docs/reference/amazon.md.

    Attributes:
        min_interactions: users with fewer are left out.
        max_history: a row keeps at most this many of the latest items before it.
        min_history: positions with fewer items before them give no row.
        negatives: training rows of items that the user did not choose, for each row of one that the user chose. Scores
            are as of one for each, which is what validation has.
        negative_history: give training rows as many items that were not chosen as their history has, for the auxiliary
            loss of DIEN and SIM.
        own_items: draw negatives from all items, those of the user's own history among them, as the reference does.
        holdout: "last" validates on each user's last item and trains on all before; "second-last" leaves the last item
            alone and validates on the one before it, to choose options without seeing the last.
        negative_seed: seed of the drawn negatives.
        attributes: what a model knows of an item beside its id: "none", its "category", or "all", which are the
            brand, the category above and the category, as far as the files have them.
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
