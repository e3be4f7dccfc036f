"""Access to Parquet files: finding them, checking them using only their footers, and reading them by row group."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rankline.training.data.loader.columns import is_numeric
from rankline.workflows.core.errors import DataError, MissingFilesError
from rankline.workflows.core.formatting import natural_order
from rankline.workflows.schema.feature_spec import Part

_STREAM_BUFFER_BYTES = 1 << 20
_WHOLE = Part(begin=0.0, end=1.0, of_each_group=True)


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    file: int
    number: int
    num_rows: int
    first_row: int = 0


@dataclass(frozen=True, kw_only=True)
class _File:
    name: str
    metadata: pq.FileMetaData
    leaves: dict[str, int]  # column → its first index in the footer
    stamp: tuple[int, int] | None  # size and modification time; None for remote files

    def __str__(self) -> str:
        return self.name


class ColumnsError(DataError):
    """A column is missing, or contains no numbers."""


class Rows(ABC):
    """Rows with the same columns, in row groups that are read one at a time.

    Attributes:
        schema: columns and types.
        row_groups: number and size of each group, in order.
    """

    schema: pa.Schema
    row_groups: tuple[RowGroup, ...]

    @abstractmethod
    def __str__(self) -> str:
        """Return what to call the rows in messages."""

    @abstractmethod
    def name(self, group: RowGroup) -> str:
        """Return what to call the source of a row group in messages."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash that differs for other row groups, so that a saved position is only used with the same data."""

    @abstractmethod
    def decoded_bytes(self, group: RowGroup, columns: Sequence[str]) -> int:
        """Estimate how many bytes the decoded `columns` of a row group take in memory."""

    @abstractmethod
    def statistics(self, group: RowGroup, column: str) -> tuple[Any, Any] | None:
        """Return a range that includes all values of a row group, or None if it is unknown without reading them."""

    @abstractmethod
    def read(self, group: RowGroup, columns: Sequence[str], *, use_threads: bool) -> pa.Table: ...

    @abstractmethod
    def stream(
        self, group: RowGroup, columns: Sequence[str], start: int, rows_at_once: int
    ) -> Generator[pa.Table, None, None]:
        """Yield a row group, starting at row `start`, as tables of `rows_at_once` rows that are decoded on demand."""

    def check_columns(self, columns: Sequence[str]) -> None:
        if missing := [name for name in columns if name not in self.schema.names]:
            raise ColumnsError(f"{self} lacks the columns {missing}. Available: {self.schema.names}.")

    def check_numeric(self, columns: Sequence[str]) -> None:
        for name in columns:
            kind = self.schema.field(name).type
            if not is_numeric(kind):
                raise ColumnsError(
                    f"{self}: column {name!r} is {kind}, expected numbers or lists of numbers. Encode it when "
                    "preparing the data, or while loading with map(workflow)."
                )


class ParquetFiles(Rows):
    """Parquet files with the same schema, local or on any fsspec file system. Opening them reads only their footers.

    Args:
        paths: one or several files, glob patterns or directories, local or remote ("s3://…"). A list keeps its order.
            The files of a pattern, and the `*.parquet` files of a directory and of its `key=value` subdirectories, are
            read in natural order: part_2 before part_10.
        part: the rows to read; None for all.
    """

    def __init__(self, paths: Any, part: Part | None = None) -> None:
        self._files = [_open(path) for path in expand(paths)]
        self.schema: pa.Schema = self._files[0].metadata.schema.to_arrow_schema()
        for file in self._files[1:]:
            _check_same_schema(self._files[0], self.schema, file)
        groups = [
            (number, group, file.metadata.row_group(group).num_rows)
            for number, file in enumerate(self._files)
            for group in range(file.metadata.num_row_groups)
        ]
        cuts = (part or _WHOLE).cut([num_rows for *_, num_rows in groups])
        self.row_groups = tuple(
            RowGroup(file=number, number=group, num_rows=end - begin, first_row=begin)
            for (number, group, _), (begin, end) in zip(groups, cuts, strict=True)
            if begin < end
        )

    def digest(self) -> str:
        described = [
            [Path(self.name(group)).name, group.number, group.num_rows] + [group.first_row] * (group.first_row > 0)
            for group in self.row_groups
        ]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]

    def name(self, group: RowGroup) -> str:
        return self._files[group.file].name

    def __str__(self) -> str:
        return self._files[0].name

    def check_columns(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name not in self.schema.names and any(f"/{name}=" in unquote(file.name) for file in self._files):
                raise ColumnsError(
                    f"{self}: {name!r} is a partition key, not a column of the file. Write {name!r} as a regular "
                    "column instead of partitioning by it."
                )
        super().check_columns(columns)

    def decoded_bytes(self, group: RowGroup, columns: Sequence[str]) -> int:
        footer = self._files[group.file].metadata.row_group(group.number)
        total = 0
        for name in columns:
            kind = self.schema.field(name).type
            is_list = hasattr(kind, "value_type")
            num_values = footer.column(self._leaf(group, name)).num_values
            total += num_values * _value_bytes(kind.value_type if is_list else kind) + 4 * group.num_rows * is_list
        return total

    def statistics(self, group: RowGroup, column: str) -> tuple[Any, Any] | None:
        footer = self._files[group.file].metadata.row_group(group.number)
        found = footer.column(self._leaf(group, column)).statistics
        return (found.min, found.max) if found is not None and found.has_min_max else None

    def read(self, group: RowGroup, columns: Sequence[str], *, use_threads: bool) -> pa.Table:
        with self._opened(group) as file:
            rows = file.read_row_group(group.number, columns=list(columns), use_threads=use_threads)
        return rows.slice(group.first_row, group.num_rows)

    def stream(
        self, group: RowGroup, columns: Sequence[str], start: int, rows_at_once: int
    ) -> Generator[pa.Table, None, None]:
        held: pa.Table | None = None
        skip, left = group.first_row + start, group.num_rows - start
        with self._opened(group, buffer_size=_STREAM_BUFFER_BYTES) as file:
            for batch in file.iter_batches(min(rows_at_once, 65_536), row_groups=[group.number], columns=list(columns)):
                rows = pa.Table.from_batches([batch]).slice(min(skip, len(batch))).slice(0, left)
                skip, left = max(0, skip - len(batch)), left - len(rows)
                held = rows if held is None else pa.concat_tables([held, rows])
                while len(held) >= rows_at_once:
                    yield held.slice(0, rows_at_once)
                    held = held.slice(rows_at_once)
        if held is not None and len(held):
            yield held

    def _leaf(self, group: RowGroup, column: str) -> int:
        return self._files[group.file].leaves[column]

    @contextmanager
    def _opened(self, group: RowGroup, buffer_size: int = 0) -> Iterator[pq.ParquetFile]:
        entry = self._files[group.file]
        try:
            if _stamp(entry.name) != entry.stamp:
                raise DataError(f"{entry} has changed since the loader opened it. Create a new loader.")
            with (
                _source(entry.name) as source,
                pq.ParquetFile(
                    source, metadata=entry.metadata, buffer_size=buffer_size, pre_buffer=not buffer_size
                ) as file,
            ):
                yield file
        except FileNotFoundError:
            raise MissingFilesError(
                f"{entry} was removed after the loader opened it. Restore it, or prepare the data again."
            ) from None
        except MemoryError:
            raise
        except (OSError, pa.ArrowException) as error:
            check_fixed_lists(entry.name, self.schema, error)
            raise DataError(
                f"{entry}: row group {group.number} is damaged ({error}). Prepare the data again."
            ) from None


def expand(paths: Any, suffix: str = ".parquet") -> list[str]:
    """Return the files of paths, glob patterns and directories, where only names that end with `suffix` count."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = [file for path in given for file in _expand_one(os.fspath(path), suffix)]
    if not found:
        raise MissingFilesError(
            f"no {suffix} files found in {given}. Pass such files, a directory that contains them, or a glob pattern."
        )
    return found


def _expand_one(path: str, suffix: str) -> list[str]:
    system, inner = fsspec.core.url_to_fs(path)
    if any(character in inner for character in "*?[") and not system.exists(inner):
        files = [file for file in system.glob(inner) if not system.isdir(file)]
    elif system.isdir(inner):
        files = _data_files(system, inner, suffix)
    else:
        files = [inner]
    found = sorted(files, key=natural_order)
    if not found:
        raise MissingFilesError(
            f"no {suffix} files found at {path}. Pass such files, a directory that contains them, or a glob pattern."
        )
    return found if _is_local(path) else [str(system.unstrip_protocol(file)) for file in found]


def _data_files(system: fsspec.AbstractFileSystem, directory: str, suffix: str) -> list[str]:
    """Return the data files in a directory and its `key=value` Hive subdirectories, excluding hidden files."""
    files: list[str] = []
    for entry in system.ls(directory, detail=True):
        name = PurePosixPath(entry["name"]).name
        if name.startswith((".", "_")):
            continue
        if entry["type"] == "directory" and "=" in name:
            files += _data_files(system, entry["name"], suffix)
        elif entry["type"] != "directory" and name.endswith(suffix):
            files.append(entry["name"])
    return files


def check_fixed_lists(path: str, schema: pa.Schema, error: Exception) -> None:
    """Raise a `DataError` that names the columns if `error` was caused by nulls in fixed-size lists, which Arrow cannot
    read.
    """
    fixed = [field.name for field in schema if pa.types.is_fixed_size_list(field.type)]
    if fixed and "Expected all lists to be of size" in str(error):
        raise DataError(
            f"{path}: one of the fixed-size list columns {fixed} contains nulls. Fill the nulls, or write the column "
            "as variable-size lists."
        ) from None


def _open(path: str) -> _File:
    try:
        with _source(path) as source:
            metadata = pq.read_metadata(source)
        return _File(name=path, metadata=metadata, leaves=_leaves(metadata), stamp=_stamp(path))
    except FileNotFoundError:
        raise MissingFilesError(f"{path} does not exist. Expected a Parquet file of prepared data.") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a complete Parquet file ({error}). Prepare the data again.") from None


def _leaves(metadata: pq.FileMetaData) -> dict[str, int]:
    names = set(metadata.schema.to_arrow_schema().names)
    leaves: dict[str, int] = {}
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        while path not in names:  # the path of a list column is name.list.element
            path = path.rpartition(".")[0]
        leaves.setdefault(path, index)
    return leaves


def _source(path: str) -> pa.NativeFile:
    if _is_local(path):
        return pa.OSFile(path)
    system, inner = fsspec.core.url_to_fs(path)
    return PyFileSystem(FSSpecHandler(system)).open_input_file(inner)


def _stamp(path: str) -> tuple[int, int] | None:
    if not _is_local(path):
        return None
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns


def _is_local(path: str) -> bool:
    return "://" not in path


def _check_same_schema(first: _File, schema: pa.Schema, file: _File) -> None:
    other = file.metadata.schema.to_arrow_schema()
    for name in sorted({*schema.names, *other.names}):
        kinds = [found.field(name).type if name in found.names else "absent" for found in (schema, other)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"{file}: column {name!r} is {kinds[1]}, but {kinds[0]} in {first}. Prepare all files together."
            )


def _value_bytes(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # strings have no bit width
        return 32
