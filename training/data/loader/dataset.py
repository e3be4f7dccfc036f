"""Everything that a loader reads: files, tables in memory, and Merlin datasets with their schemas."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import fsspec
import pyarrow as pa

from rankline.training.data.loader.files import ParquetFiles, Rows, expand
from rankline.training.data.loader.tables import TableRows, table_of_frame
from rankline.workflows.core.errors import ArgumentError, ConfigError, DataError, MissingFilesError, in_short
from rankline.workflows.nvt import dask_options  # noqa: F401  # before the user creates a Dask DataFrame
from rankline.workflows.schema.feature_spec import PARQUET


class Omitted(Enum):
    """The default of an argument for which None means something else."""

    OMITTED = "omitted"


OMITTED = Omitted.OMITTED
Names: TypeAlias = Sequence[str] | Omitted | None
"""Columns; none if None; those with a tag in the schema if omitted."""

_SUFFIXES = {PARQUET: ".parquet", "csv": ".csv"}
_SCHEMAS = (".merlin/schema.json", "schema.pbtxt")
_ACCEPTED = (
    "Parquet files, a glob pattern or a directory, a Dataset of NVTabular or Merlin, or a DataFrame of pandas, Dask, "
    "Polars or Arrow"
)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a batch.

    Attributes:
        cats, conts, labels: names of id columns, numbers and labels.
        shapes: list column → shape of a row, for columns whose rows all have that shape according to the schema.
        widths: list column → maximum length according to the schema.
        schema: the Merlin schema; None if there is none.
    """

    cats: tuple[str, ...]
    conts: tuple[str, ...]
    labels: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    schema: Any = None


def open_rows(data: Any) -> Rows:
    """Open any data that a loader accepts.

    Args:
        data: files (see `ParquetFiles`), a Merlin dataset, a DataFrame of pandas or Dask, or any object that exports an
            Arrow table. All but Parquet files is held in memory.

    Raises:
        ArgumentError: the object is not supported.
        DataError: there are no rows or files, or they differ in their columns.
    """
    if isinstance(data, Rows):
        return data
    if hasattr(data, "to_ddf"):
        return _dataset_rows(data)
    if hasattr(data, "to_delayed"):
        return _frames(data, "the Dask DataFrame")
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return TableRows([table_of_frame(data, "the DataFrame")], "the DataFrame")
    if hasattr(data, "__arrow_c_stream__"):
        return TableRows([pa.table(data)], "the table")
    if (paths := _paths(data)) is not None:
        return ParquetFiles(paths)
    raise ArgumentError(f"the data is a {type(data).__name__}, expected {_ACCEPTED}.")


def merlin_dataset(data: Any, engine: str, reader_kwargs: Mapping[str, Any]) -> Any:
    """Return a Merlin dataset of files that are not Parquet, or are read with options of their own.

    Raises:
        ConfigError: Merlin does not know the format or an option.
    """
    if engine not in _SUFFIXES:
        raise ConfigError(f"engine is {engine!r}, expected {' or '.join(_SUFFIXES)}.")
    if engine == PARQUET and (unknown := sorted(set(reader_kwargs) - {"filters"})):
        raise ConfigError(f"reader_kwargs has {unknown}, expected only cpu and filters for Parquet files.")
    if (paths := _paths(data)) is None:
        raise ConfigError(
            f"engine and reader_kwargs are for files, but the data is a {type(data).__name__}. Omit them."
        )
    from rankline.workflows.nvt.compat import nvt, quiet_nvtabular  # takes seconds to import

    files = expand(paths, _SUFFIXES[engine])
    try:
        with quiet_nvtabular():
            return nvt.Dataset(files, engine=engine, **{"cpu": True, **reader_kwargs})
    except OSError as error:
        raise MissingFilesError(f"{files[0]} cannot be read: {in_short(error)}.") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"NVTabular cannot open a Dataset with engine {engine!r} and reader_kwargs {dict(reader_kwargs)}: {error}."
        ) from None


def schema_of(data: Any, rows: Rows) -> Any:
    """Return the Merlin schema of a dataset, or the one stored with the files that `rows` come from; None if there is
    none.

    Raises:
        DataError: the stored schema is damaged.
    """
    if hasattr(data, "to_ddf"):
        return data.schema
    if rows is data or not isinstance(rows, ParquetFiles):
        return None
    system, file = fsspec.core.url_to_fs(str(rows))
    directory = PurePosixPath(file).parent
    while "=" in directory.name:  # a Hive partition
        directory = directory.parent
    for name in _SCHEMAS:
        if system.exists(str(directory / name)):
            return _stored_schema(system.cat_file(str(directory / name)).decode(), name, f"{directory / name}")
    return None


def _stored_schema(text: str, name: str, place: str) -> Any:
    from rankline.workflows.nvt.compat import importing_merlin

    with importing_merlin():
        from merlin.schema.io.tensorflow_metadata import TensorflowMetadata
    read = TensorflowMetadata.from_json if name.endswith("json") else TensorflowMetadata.from_proto_text
    try:
        return read(text).to_merlin_schema()
    except Exception as error:  # of any parser
        raise DataError(f"{place} is not a Merlin schema: {in_short(error)}. Write the data again.") from None


def tagged_columns(schema: Any, cats: Names, conts: Names, labels: Names) -> Columns:
    """Return the columns of a batch, taking those that are omitted from the tags of a Merlin schema, which may be None.

    A column that is named in one argument is not also taken from its tag for another.
    """
    labels_ = _names(labels, "label", schema, "TARGET")
    named = {name for given in (cats, conts, labels) if not isinstance(given, Omitted) for name in given or ()}
    cats_, conts_ = (
        tuple(name for name in _names(given, kind, schema, tag) if given is not OMITTED or name not in named)
        for given, kind, tag in ((cats, "id", "CATEGORICAL"), (conts, "number", "CONTINUOUS"))
    )
    if not cats_ and not conts_:
        raise ConfigError(
            "there are no input columns: none are named, and the schema of the data has no columns tagged CATEGORICAL "
            "or CONTINUOUS. Pass the names of the id columns or the number columns."
        )
    return Columns(cats=cats_, conts=conts_, labels=labels_, schema=schema, **_lists_of(schema, (*cats_, *conts_)))


def all_columns(schema: Any, rows: Rows) -> Columns:
    """Return all columns of a Merlin schema, with those tagged TARGET as labels, or else the columns of the rows."""
    labels = _tagged(schema, "TARGET")
    names = rows.schema.names if schema is None else schema.column_names
    inputs = tuple(name for name in names if name not in labels)
    return Columns(cats=(), conts=inputs, labels=labels, schema=schema, **_lists_of(schema, inputs))


def _names(given: Names, kind: str, schema: Any, tag: str) -> tuple[str, ...]:
    if given is OMITTED:
        return _tagged(schema, tag)
    if isinstance(given, str) or not all(isinstance(name, str) for name in given or ()):
        raise ArgumentError(f"the {kind} columns are {given!r}, expected a list of column names.")
    return tuple(given or ())


def _tagged(schema: Any, tag: str) -> tuple[str, ...]:
    if schema is None:
        return ()
    from merlin.schema import Tags  # imported with the schema

    return tuple(schema.select_by_tag(getattr(Tags, tag)).column_names)


def _lists_of(schema: Any, names: Iterable[str]) -> dict[str, Any]:
    shapes, widths = {}, {}
    for column in (schema[name] for name in names if schema is not None and name in schema.column_names):
        dims: Sequence[Any] = tuple(column.shape.dims or ())[1:]
        if dims and all(dim.is_fixed for dim in dims):
            shapes[column.name] = tuple(int(dim.max) for dim in dims)
        elif len(dims) == 1 and dims[0].max is not None:
            widths[column.name] = int(dims[0].max)
    return {"shapes": shapes, "widths": widths}


def _dataset_rows(dataset: Any) -> Rows:
    engine = dataset.engine
    if "parquet" in type(engine).__module__ and not engine.filters:
        return ParquetFiles(engine.paths)
    return _frames(dataset.to_ddf(), "the Dataset")


def _frames(frames: Any, source: str) -> TableRows:
    from dask.base import compute

    from rankline.workflows.nvt.compat import quiet_nvtabular

    with quiet_nvtabular():
        parts = compute(*frames.to_delayed())  # type: ignore[no-untyped-call]
    return TableRows([table_of_frame(part, source) for part in parts], source)


def _paths(data: Any) -> list[Any] | None:
    """Return one path or several as a list, or None if the data is something else."""
    is_several = isinstance(data, Iterable) and not isinstance(data, str | os.PathLike | Mapping | bytes)
    paths = list(data) if is_several and not hasattr(data, "columns") else [data]
    return paths if all(isinstance(path, str | os.PathLike) for path in paths) else None
