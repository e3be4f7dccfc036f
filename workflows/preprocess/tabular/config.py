"""Options of `prepare` for raw rows that stay rows. Fast to import: the command line derives its options from them."""

from dataclasses import dataclass

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import MOST_SEED, check_at_least

SPLITS = ("random", "time", "group")


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """How raw rows are split.

    Attributes:
        split: "random" permutes the rows with `split_seed`; "time" validates on the latest rows; "group" keeps the rows
            of a group together and selects groups by hash.
        valid_share: share of the rows to validate on, in (0, 1).
        split_seed: seed of the random split.
    """

    split: str = "random"
    valid_share: float = 0.2
    split_seed: int = 42

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split is {self.split!r}. Available: {', '.join(SPLITS)}.")
        if not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share is {self.valid_share}, expected a share between 0 and 1.")
        check_at_least(self, 0, "split_seed", most=MOST_SEED)
