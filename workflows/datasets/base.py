"""What a dataset is to the rest of the house: how to get its rows, and which NVTabular graph encodes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from workflows.datasets.raw import RawData
from workflows.download import Archive
from workflows.errors import ConfigError
from workflows.progress import Progress
from workflows.upstream import nvt

SPLITS = ("random", "time")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How raw rows become training data.

    Attributes:
        split: "random" permutes the rows with `seed`; "time" validates on the latest.
        valid_share: share of the rows that validates, in (0, 1).
        seed: of the random split.
        frequency_threshold: ids seen less often count as unseen; 0 keeps all.
        hash_buckets: number of ids that unseen values are hashed to; 0 gives them one id together.
    """

    split: str = "random"
    valid_share: float = 0.2
    seed: int = 42
    frequency_threshold: int = 0
    hash_buckets: int = 0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split is {self.split!r}. Available: {', '.join(SPLITS)}.")
        if not 0 < self.valid_share < 1:
            raise ConfigError(f"valid_share is {self.valid_share}, expected a share between 0 and 1.")
        for name in ("seed", "frequency_threshold", "hash_buckets"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 0 or more.")


class Generator(Protocol):
    """Writes a dataset of the same shape, so that everything runs without a download."""

    def __call__(self, directory: Path, *, num_rows: int, seed: int, progress: Progress) -> float:
        """Write raw files into `directory` and return the best AUC that any model can reach on them."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One source of interactions.

    Attributes:
        name: key in DATASETS.
        read: directory → raw rows; raises DataError on bad input.
        generate: writes rows of the same shape.
        graph: raw data and choices → NVTabular workflow, not yet fitted. Its input columns are those of the raw rows.
        inputs: raw columns that a serving request holds.
        label: column of the label, raw and encoded.
        time: raw column that orders the rows.
        group_by: input column whose groups GAUC averages over.
        item: input column that the catalogue lists.
        archives: name → downloadable archive.
    """

    name: str
    read: Callable[[Path], RawData]
    generate: Generator
    graph: Callable[[RawData, PrepareConfig], nvt.Workflow]
    inputs: tuple[str, ...]
    label: str
    time: str
    group_by: str
    item: str
    archives: Mapping[str, Archive] = field(default_factory=dict)
