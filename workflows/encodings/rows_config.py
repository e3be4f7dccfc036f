"""The choices of `prepare` for raw rows that stay rows, light to import: the command line makes options of them."""

from dataclasses import dataclass

from workflows.choices import MOST_SEED, check_at_least
from workflows.errors import ConfigError

SPLITS = ("random", "time", "group")
ENCODES = ("offline", "online")


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """How raw rows are split, and whether they are encoded before training or while it runs.

    Attributes:
        split: "random" permutes the rows with `split_seed`; "time" validates on the latest; "group" keeps rows of one
            group together, as groups come by their hash.
        valid_share: share of the rows to validate on, in (0, 1).
        split_seed: seed of the random split.
        hash_share: hash all values of a column to as many ids as this share of its distinct values, without a
            vocabulary or a threshold; 0 keeps vocabularies. For datasets whose graph can (criteo).
        encode: "offline" writes encoded rows; "online" writes raw ones, which the loader encodes while it reads.
    """

    split: str = "random"
    valid_share: float = 0.2
    split_seed: int = 42
    hash_share: float = 0.0
    encode: str = "offline"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split is {self.split!r}. Available: {', '.join(SPLITS)}.")
        if not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share is {self.valid_share}, expected a share between 0 and 1.")
        if not 0 <= self.hash_share <= 1:
            raise ConfigError(f"hash_share is {self.hash_share}, expected a share between 0 and 1.")
        if self.encode not in ENCODES:
            raise ConfigError(f"encode is {self.encode!r}. Available: {', '.join(ENCODES)}.")
        check_at_least(self, 0, "split_seed", most=MOST_SEED)
