"""The choices of `prepare`, light to import: the command line makes its options from them."""

from dataclasses import dataclass

from workflows.errors import ConfigError

SPLITS = ("random", "time")
ENCODES = ("offline", "online")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How raw rows become training data.

    Attributes:
        split: "random" permutes the rows with `split_seed`; "time" validates on the latest.
        valid_share: share of the rows that validates, in (0, 1).
        split_seed: of the random split.
        frequency_threshold: ids seen less often count as unseen; 0 keeps all.
        hash_buckets: number of ids that unseen values are hashed to; 0 gives them one id together.
        hash_share: hash all values of a column to so many ids as this share of its distinct values, without a
            vocabulary or a threshold; 0 keeps vocabularies. For datasets whose graph can (criteo).
        encode: "offline" writes encoded rows; "online" writes raw ones, which the loader encodes chunk by chunk.
    """

    split: str = "random"
    valid_share: float = 0.2
    split_seed: int = 42
    frequency_threshold: int = 0
    hash_buckets: int = 0
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
        for name in ("split_seed", "frequency_threshold", "hash_buckets"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 0 or more.")
