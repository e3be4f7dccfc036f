"""The definition of a dataset: how to read its rows, and which NVTabular graph encodes them."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import Progress
from rankline.workflows.preprocess import EncodingConfig, RowsConfig, SequenceConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.raw import RawData, StreamedRows
from rankline.workflows.schema.targets import Head
from rankline.workflows.storage.download import Archive

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt


class Generator(Protocol):
    """Interface for functions that write synthetic data with a dataset's schema, so that no stage needs a download."""

    def __call__(
        self, directory: Path, *, num_rows: int, seed: int, cardinality_scale: float, progress: Progress
    ) -> object:
        """Write raw files and `truth.json` to `directory`. The latter has the highest achievable AUC as `best_auc`.

        `cardinality_scale` multiplies the number of distinct ids.
        """


class Requests(Protocol):
    """Interface for reading the rows to score in the same way as the training rows."""

    def of_file(
        self, path: Path, optional: Collection[str] = (), format_name: str | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table, float]]:
        """Yield each batch of a file as a table of rows as read, a table of request rows, and the fraction of the file
        read so far.

        The file may omit the `optional` columns; without a `format_name`, `format_of` says the format.

        Raises:
            DataError: the file or a column is missing, or a value is invalid.
        """

    def format_of(self, path: Path) -> str:
        """Return the format of a file: csv, parquet or jsonl."""

    def incompatible_changes(self, choices: Mapping[str, Any]) -> list[str]:
        """Return the keys for which the values in `choices` would make the dataset read rows differently."""

    def of_texts(self, texts: Mapping[str, str], optional: Collection[str] = ()) -> pa.RecordBatch:
        """Convert one row of strings, as in a CSV file, to a request row.

        Raises:
            DataError: a column is missing or unknown, or a value is invalid.
        """

    def as_texts(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return a request row as strings, the reverse of `of_texts`."""


@dataclass(frozen=True, kw_only=True)
class SequenceColumns:
    """Column names of a dataset whose raw rows are interactions, which `prepare` converts to rows with histories.

    The raw rows have `user` and `item`. They are grouped by user, and each user's items are in chronological order. The
    graph takes `user`, `item` and `history`, a list of the raw ids of the previous items. Its outputs are the columns
    of the feature spec: the encoded `user` under its own name, and, for each item feature, NAME + `TARGET_SUFFIX` for
    the item and NAME + `HISTORY_SUFFIX` for the history, in the same order and with the same vocabulary.
    """

    user: str  # column of user ids
    item: str  # column of item ids; a serving request may have several per row, the candidates
    history: str  # column of the previous items, the latest last


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A source of training data.

    The graph takes raw data, config and the encoding's config, and returns an unfitted workflow. Its inputs are the
    columns of the raw rows or, for rows with histories, those described in `SequenceColumns`; it then outputs no label.
    Prepared data records the choices of a recipe file for files, columns, labels, split and ids, as JSON values, and
    cannot be used after they change in the recipe.
    """

    name: str  # name in messages and artifacts
    read: Callable[[Path], RawData]  # directory → raw rows; raises DataError on invalid input
    inputs: tuple[str, ...]  # raw columns of a serving request
    heads: tuple[Head, ...]  # labels and their tasks; a label column has the same name before and after encoding
    graph: Callable[[RawData, PrepareConfig, Any], "nvt.Workflow"]
    generate: Generator | None = None  # writes synthetic rows with the same schema, if possible
    time: str | None = None  # raw column that orders the rows; None for streamed rows, which are already in order
    group_by: str | None = None  # raw column of the groups, such as users; GAUC needs it among the inputs
    group: str | None = None  # raw column for a split by group; None for `group_by`
    item: str | None = None  # input column with the ids of the catalog's items, if any
    sequence: SequenceColumns | None = None  # the columns to build histories from, if rows are interactions
    archives: Mapping[str, Archive] = field(default_factory=dict)  # name → downloadable archive
    choices: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None  # directory of the raw files, if a recipe file sets it
    requests: Requests | None = None  # reads raw files to score, if the dataset defines their columns

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(head.column for head in self.heads)

    def raw_data(self, directory: Path) -> RawData:
        """Call `read`, and check the type of what it returns.

        Raises:
            DataError: the files are missing or invalid.
            ConfigError: `read` returns something else.
        """
        raw = self.read(directory)
        if not isinstance(raw, RawData):
            raise ConfigError(
                f"`read` of dataset {self.name} returns {type(raw).__name__}, expected RawData. Return "
                "RawData(rows=TABLE, fingerprint=fingerprint_of(FILES)) of rankline.workflows.preprocess.raw."
            )
        if not isinstance(raw.rows, pa.Table | StreamedRows):
            raise ConfigError(
                f"`read` of dataset {self.name} returns rows as {type(raw.rows).__name__}, expected pyarrow.Table or "
                "StreamedRows. Convert them, for example with pyarrow.Table.from_pandas."
            )
        return raw

    @property
    def encoding(self) -> type[EncodingConfig]:
        return RowsConfig if self.sequence is None else SequenceConfig
