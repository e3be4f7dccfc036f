"""What a dataset is to the rest of the house: how to get its rows, and which NVTabular graph encodes them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rankline.workflows.core.progress import Progress
from rankline.workflows.preprocess import EncodingConfig, RowsConfig, SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import Head
from rankline.workflows.storage.download import Archive

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt


class Generator(Protocol):
    """Writes a dataset of the same shape, so that everything runs without a download."""

    def __call__(
        self, directory: Path, *, num_rows: int, seed: int, cardinality_scale: float, progress: Progress
    ) -> object:
        """Write raw files into `directory`, and `truth.json` with the `best_auc` that any model can reach.

        `cardinality_scale` multiplies the number of distinct ids.
        """


class Requests(Protocol):
    """Reads rows to score as the rows were read that were trained on."""

    def of_file(
        self, path: Path, optional: Collection[str] = (), format_name: str | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table, float]]:
        """Some rows of a file as they are in it, as they are sent, and the share of the rows that is read with them.

        Args:
            path: the file.
            optional: columns that it may lack.
            format_name: as `format_of`; None is what that says.

        Raises:
            DataError: the file or a column is missing, or a value does not fit.
        """

    def format_of(self, path: Path) -> str:
        """How a file is written: csv, parquet or jsonl."""

    def read_otherwise(self, choices: Mapping[str, Any]) -> list[str]:
        """Which of the earlier `Dataset.choices` read rows to score otherwise than those of today."""

    def of_texts(self, texts: Mapping[str, str], optional: Collection[str] = ()) -> pa.RecordBatch:
        """One row, as it is sent, of texts such as a CSV file has.

        Raises:
            DataError: a column is missing or unknown, or a value does not fit.
        """


@dataclass(frozen=True, kw_only=True)
class SequenceColumns:
    """Columns of a dataset whose rows are interactions, which `prepare` makes rows with histories of.

    The raw rows hold `user` and `item`, users one after another and each user's items in the order of time. The graph
    takes `user`, `item` and `history`, a list of the raw ids of the items before. Its outputs are the columns of the
    feature spec: `user` encoded under its own name, and for each item feature NAME + `TARGET_SUFFIX` of the item and
    NAME + `HISTORY_SUFFIX` of the history, in the same order and of the same vocabulary.

    Attributes:
        user: who.
        item: what; a serving request may hold several, the candidates.
        history: what before, the latest last.
    """

    user: str
    item: str
    history: str


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One source of interactions.

    Attributes:
        name: what messages and artifacts call it.
        read: directory → raw rows; raises DataError on bad input.
        generate: writes rows of the same shape; None where there is nothing that does.
        inputs: raw columns that a serving request holds.
        heads: what is to be learned of which label; a label's column has one name, raw and encoded.
        graph: raw data, config and the config of the encoding → NVTabular workflow, not yet fitted. Its input columns
            are those of the raw rows; where rows become histories, see `SequenceColumns`, and it makes no label.
        time: raw column that orders the rows; None where they are streamed, which is in order.
        group_by: input column whose groups GAUC averages over, if there is one.
        group: raw column whose rows of one value stay together in a split by group, if there is one.
        item: input column that the catalogue lists, if there is one.
        sequence: the columns, where rows are interactions that histories are made of.
        archives: name → downloadable archive.
        choices: what a recipe file says of files, columns, labels, split and ids, by key, as JSON has it. Prepared data
            keep it, and are of no use for a recipe that has been changed since.
        directory: where its raw files are, where a recipe file says so.
        requests: reads raw files to score, where the dataset says what their columns are.
    """

    name: str
    read: Callable[[Path], RawData]
    inputs: tuple[str, ...]
    heads: tuple[Head, ...]
    graph: Callable[[RawData, PrepareConfig, Any], "nvt.Workflow"]
    generate: Generator | None = None
    time: str | None = None
    group_by: str | None = None
    group: str | None = None
    item: str | None = None
    sequence: SequenceColumns | None = None
    archives: Mapping[str, Archive] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    requests: Requests | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(head.column for head in self.heads)

    @property
    def encoding(self) -> type[EncodingConfig]:
        """Class of the options of its encoding, which says how its raw rows become encoded ones."""
        return RowsConfig if self.sequence is None else SequenceConfig
