"""What a dataset is to the rest of the house: how to get its rows, and which NVTabular graph encodes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workflows.datasets.raw import RawData
from workflows.download import Archive
from workflows.prepare_config import PrepareConfig
from workflows.progress import Progress

if TYPE_CHECKING:
    from workflows.upstream import nvt


class Generator(Protocol):
    """Writes a dataset of the same shape, so that everything runs without a download."""

    def __call__(
        self, directory: Path, *, num_rows: int, seed: int, cardinality_scale: float, progress: Progress
    ) -> object:
        """Write raw files into `directory`, and `truth.json` with the `best_auc` that any model can reach.

        `cardinality_scale` multiplies the number of distinct ids.
        """


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
        time: raw column that orders the rows; None where they are streamed, which is in order.
        group_by: input column whose groups GAUC averages over, if there is one.
        item: input column that the catalogue lists, if there is one.
        archives: name → downloadable archive.
    """

    name: str
    read: Callable[[Path], RawData]
    generate: Generator
    graph: Callable[[RawData, PrepareConfig], "nvt.Workflow"]
    inputs: tuple[str, ...]
    label: str
    time: str | None = None
    group_by: str | None = None
    item: str | None = None
    archives: Mapping[str, Archive] = field(default_factory=dict)
