"""The choices of `prepare` for any kind of data, light to import: the command line makes its options from them."""

from dataclasses import dataclass

from rankline.workflows.core.validation import check_at_least
from rankline.workflows.nvt.kernels.categories import MOST_BUCKETS


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How ids are made; `rankline.workflows.preprocess` has what there is to choose for one kind of data.

    Attributes:
        frequency_threshold: ids seen less often count as unseen; 0 keeps all.
        hash_buckets: number of ids that unseen values are hashed to; 0 gives them all one id.
    """

    frequency_threshold: int = 0
    hash_buckets: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "frequency_threshold")
        check_at_least(self, 0, "hash_buckets", most=MOST_BUCKETS)
