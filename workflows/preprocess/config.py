"""Options of `prepare` for every kind of data. Fast to import: the command line derives its options from them."""

from dataclasses import dataclass

from rankline.workflows.core.validation import check_at_least
from rankline.workflows.nvt.kernels.categories import MOST_BUCKETS


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How ids are encoded. The options for one kind of data are in `rankline.workflows.preprocess`.

    Attributes:
        frequency_threshold: treat ids that occur less often as unseen; 0 keeps all ids.
        hash_buckets: number of ids that unseen values are hashed to; 0 maps all unseen values to one id.
    """

    frequency_threshold: int = 0
    hash_buckets: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "frequency_threshold")
        check_at_least(self, 0, "hash_buckets", most=MOST_BUCKETS)
