"""Framework-free streaming of Parquet files as shuffled batches, through Arrow.

Row groups are the unit of reading. A background thread reads a few of them from different places, joins and shuffles
them in one go, and has the next chunk ready while the consumer slices the current one. Columns are never turned into
Python objects; a batch is a set of views into its chunk.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from workflows.errors import ConfigError, DataError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """A list column of N rows.

    Attributes:
        values: all values, one row after the other, shape (M,).
        nnzs: number of values of each row, int32, shape (N,).
    """

    values: npt.NDArray[Any]
    nnzs: npt.NDArray[np.int32]


Batch = dict[str, "npt.NDArray[Any] | Ragged"]


@dataclass(frozen=True, kw_only=True)
class _Part:
    path: Path
    row_group: int
    num_rows: int
    num_bytes: int


class ChunkStream:
    """Batches of some columns of Parquet files, every row exactly once per epoch.

    Args:
        paths: the files, in order.
        columns: the columns to read; they must hold numbers or lists of numbers, and no nulls.
        batch_size: rows per batch; only the last batch of an epoch is smaller.
        shuffle: order the row groups and the rows of each chunk at random. The order follows from (seed, epoch).
        parts_per_chunk: row groups that are joined, and shuffled together, in one chunk.
        buffer_size: memory that one chunk may take: a number of bytes, or, below 1, a share of the machine's memory.
            A chunk that reaches it is closed early; a single larger row group is still read whole. About three chunks
            exist at a time: the one in use, the next one, and what the next one is made from.
        seed: start of the random order.

    Raises:
        ConfigError: an argument is out of its range.
        DataError: a file is missing or is no Parquet, or a column is missing or of a type that has no tensor.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        columns: Sequence[str],
        *,
        batch_size: int,
        shuffle: bool = True,
        parts_per_chunk: int = 1,
        buffer_size: float = 0.06,
        seed: int = 0,
    ) -> None:
        for name, number in (("batch_size", batch_size), ("parts_per_chunk", parts_per_chunk)):
            if number < 1:
                raise ConfigError(f"{name} is {number}, expected a whole number of at least 1.")
        if not buffer_size > 0:
            raise ConfigError(f"buffer_size is {buffer_size}, expected a number of bytes, or a share below 1.")
        if not paths:
            raise DataError("the loader got no Parquet files. Give at least one file, or a glob that matches some.")
        self._columns = list(columns)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._parts_per_chunk = parts_per_chunk
        self._buffer_bytes = buffer_size if buffer_size >= 1 else buffer_size * _physical_memory_bytes()
        self._seed = seed
        self._metadata = {path: _read_metadata(path, self._columns) for path in paths}
        self._parts = [part for path in paths for part in _parts_of(path, self._metadata[path], self._columns)]
        self.num_rows = sum(part.num_rows for part in self._parts)

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.num_rows // self._batch_size)

    def batches(self, epoch: int = 0) -> Iterator[Batch]:
        """Read one epoch.

        The background thread lives as long as the iterator; one that is closed or dropped early ends it.

        Args:
            epoch: number of the epoch; another number gives another order.

        Yields:
            column name → array of shape (N,), or `Ragged` for a list column.

        Raises:
            DataError: a file changed or is damaged, or a column holds nulls.
        """
        for chunk in _prefetched(self._chunks(epoch)):
            columns = {name: _Column(chunk.column(name).chunk(0)) for name in self._columns}
            for start in range(0, chunk.num_rows, self._batch_size):
                stop = min(start + self._batch_size, chunk.num_rows)
                yield {name: column.slice(start, stop) for name, column in columns.items()}

    def _chunks(self, epoch: int) -> Iterator[pa.Table]:
        """Shuffled tables, each a whole number of batches; what is left over goes into the next one."""
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(len(self._parts)) if self._shuffle else range(len(self._parts))
        groups = self._grouped([self._parts[index] for index in order])
        rest: list[pa.Table] = []
        for number, group in enumerate(groups, start=1):
            table = pa.concat_tables(rest + [self._read(part) for part in group])
            table = table.take(pa.array(rng.permutation(table.num_rows))) if self._shuffle else table
            keep = table.num_rows if number == len(groups) else table.num_rows // self._batch_size * self._batch_size
            rest = [table.slice(keep)]
            if keep:
                yield table.slice(0, keep).combine_chunks()

    def _grouped(self, parts: list[_Part]) -> list[list[_Part]]:
        groups: list[list[_Part]] = []
        num_bytes = 0
        for part in parts:
            num_bytes += part.num_bytes
            if not groups or len(groups[-1]) == self._parts_per_chunk or num_bytes > self._buffer_bytes:
                groups.append([])
                num_bytes = part.num_bytes
            groups[-1].append(part)
        return groups

    def _read(self, part: _Part) -> pa.Table:
        try:
            with pq.ParquetFile(part.path, metadata=self._metadata[part.path]) as file:
                table = file.read_row_group(part.row_group, columns=self._columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{part.path}: row group {part.row_group} is damaged ({error}). Prepare again.") from None
        if nulls := [name for name in self._columns if _holds_nulls(table.column(name))]:
            raise DataError(f"{part.path}: columns {nulls} hold nulls, expected none. Fill them when preparing.")
        return table


def _holds_nulls(column: pa.ChunkedArray) -> bool:
    """Whether a row, or a value of a list, is missing."""
    return column.null_count > 0 or (
        _is_list(column.type) and any(chunk.values.null_count for chunk in column.iterchunks())
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


class _Column:
    """One column of a chunk as NumPy views."""

    def __init__(self, array: pa.Array) -> None:
        self._offsets = None
        if _is_list(array.type):
            self._offsets = array.offsets.to_numpy()
            array = array.values
        self._values: npt.NDArray[Any] = array.to_numpy()

    def slice(self, start: int, stop: int) -> "npt.NDArray[Any] | Ragged":
        if self._offsets is None:
            return self._values[start:stop]
        offsets = self._offsets[start : stop + 1]
        return Ragged(values=self._values[offsets[0] : offsets[-1]], nnzs=np.diff(offsets).astype(np.int32, copy=False))


def _prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next one always being made by a thread while the current one is used."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rankline-chunks") as pool:
        ahead = pool.submit(next, items, None)
        while (item := ahead.result()) is not None:
            ahead = pool.submit(next, items, None)
            yield item


def _read_metadata(path: Path, columns: Sequence[str]) -> pq.FileMetaData:
    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Expected a Parquet file of prepared data.") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a whole Parquet file ({error}). Prepare the data again.") from None
    schema = metadata.schema.to_arrow_schema()
    if missing := [name for name in columns if name not in schema.names]:
        raise DataError(f"{path} lacks the columns {missing}. Available: {schema.names}.")
    for name in columns:
        kind = schema.field(name).type
        value_type = kind.value_type if _is_list(kind) else kind
        if not (pa.types.is_integer(value_type) or pa.types.is_floating(value_type)):
            raise DataError(f"{path}: column {name!r} is {kind}, expected numbers or lists of numbers.")
    return metadata


def _parts_of(path: Path, metadata: pq.FileMetaData, columns: Sequence[str]) -> list[_Part]:
    wanted = [
        index for index in range(metadata.num_columns) if metadata.schema.column(index).path.split(".")[0] in columns
    ]
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    return [
        _Part(
            path=path,
            row_group=number,
            num_rows=group.num_rows,
            num_bytes=sum(group.column(index).total_uncompressed_size for index in wanted),
        )
        for number, group in enumerate(groups)
        if group.num_rows
    ]


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
