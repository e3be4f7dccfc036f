"""Rows in memory, read like the row groups of Parquet files."""

import hashlib
import json
from collections.abc import Generator, Sequence
from typing import Any

import pyarrow as pa

from rankline.training.data.loader.files import RowGroup, Rows
from rankline.workflows.core.errors import DataError

_GROUP_ROWS = 65_536  # enough groups to mix in a shuffle block, and few enough to read fast


class TableRows(Rows):
    """Rows of Arrow tables, which are not copied unless they consist of several chunks.

    Args:
        tables: parts of the data in order, such as the partitions of a Dask DataFrame.
        source: what to call the data in messages.

    Raises:
        DataError: there are no rows, or the parts have different columns.
    """

    def __init__(self, tables: Sequence[pa.Table], source: str) -> None:
        self._source = source
        if not any(map(len, tables)):
            raise DataError(f"{source} has no rows. Check its filters, or pass other data.")
        self.schema = _common_schema(tables, source)
        self._tables = [
            table.select(self.schema.names).cast(self.schema).combine_chunks() for table in tables if len(table)
        ]
        self.row_groups = tuple(
            RowGroup(file=file, number=number, num_rows=min(_GROUP_ROWS, len(table) - first), first_row=first)
            for file, table in enumerate(self._tables)
            for number, first in enumerate(range(0, len(table), _GROUP_ROWS))
        )

    def __str__(self) -> str:
        return self._source

    def name(self, group: RowGroup) -> str:  # noqa: ARG002  (all rows have one source)
        return self._source

    def digest(self) -> str:
        described = [str(self.schema), [group.num_rows for group in self.row_groups]]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]

    def decoded_bytes(self, group: RowGroup, columns: Sequence[str]) -> int:
        return int(self._rows(group).select(columns).nbytes)

    def statistics(self, group: RowGroup, column: str) -> None:  # noqa: ARG002
        return None

    def read(self, group: RowGroup, columns: Sequence[str], *, use_threads: bool) -> pa.Table:  # noqa: ARG002
        return self._rows(group).select(columns)

    def stream(
        self, group: RowGroup, columns: Sequence[str], start: int, rows_at_once: int
    ) -> Generator[pa.Table, None, None]:
        rows = self._rows(group).select(columns)
        for first in range(start, len(rows), rows_at_once):
            yield rows.slice(first, rows_at_once)

    def _rows(self, group: RowGroup) -> pa.Table:
        return self._tables[group.file].slice(group.first_row, group.num_rows)


def _common_schema(tables: Sequence[pa.Table], source: str) -> pa.Schema:
    """Return the schema of all parts. Dictionary columns get the type of their values, and a column that is empty in
    one part gets its type from the others.
    """
    found: dict[str, tuple[pa.DataType, int]] = {}
    for number, table in enumerate(tables):
        if odd := sorted(set(table.schema.names) ^ set(tables[0].schema.names)):
            raise DataError(
                f"{source}: only one of the partitions 0 and {number} has {odd}. Give all the same columns."
            )
        for field in table.schema:
            own = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            kind, first = found.setdefault(field.name, (own, number))
            if _is_unknown(kind):
                found[field.name] = (own, number)
            elif own != kind and not _is_unknown(own):
                raise DataError(
                    f"{source}: column {field.name!r} is {own} in partition {number}, but {kind} in partition "
                    f"{first}. Convert the column to one dtype."
                )
    return pa.schema([(name, kind) for name, (kind, _) in found.items()])


def _is_unknown(kind: pa.DataType) -> bool:
    """Whether a column has no values, or only empty lists, so that Arrow does not know their type."""
    return _is_unknown(kind.value_type) if pa.types.is_list(kind) else bool(pa.types.is_null(kind))


def table_of_frame(frame: Any, source: str) -> pa.Table:
    """Convert a pandas DataFrame to Arrow without its index.

    Raises:
        DataError: a column has values of several types.
    """
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{source} cannot be read: {' '.join(map(str, error.args))}. Convert the column.") from None
