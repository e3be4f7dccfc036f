"""Tables that are the same on every stack, and how far two of them are apart."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather


def table_of(frame: pd.DataFrame, elements: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
    """A frame as Arrow, NaN as it is; columns of numbers as they are, of anything else by their values.

    `elements` are dtypes of what is in lists, by column; others are as Arrow finds them.
    """

    def column(name: str) -> pa.Array:
        if frame[name].dtype != object:
            return pa.array(frame[name].to_numpy())
        if name not in elements:
            return pa.array(list(frame[name]))
        rows = [np.asarray(row, dtype=elements[name]) for row in frame[name]]
        return pa.array(rows, pa.list_(pa.from_numpy_dtype(elements[name])))

    return pa.table({name: column(name) for name in frame})


def frame_of(table: pa.Table) -> pd.DataFrame:
    """The frame of `table_of`, lists as Python's."""

    def column(values: pa.ChunkedArray) -> Any:
        kind = values.type
        is_plain = not (pa.types.is_nested(kind) or pa.types.is_string(kind))
        return values.to_numpy() if is_plain else pd.Series(values.to_pylist(), dtype=object)

    return pd.DataFrame({name: column(table[name]) for name in table.column_names})


def read_table(path: Path) -> pa.Table:
    """An uncompressed Arrow file."""
    return feather.read_table(str(path), memory_map=False)


def steps_apart(actual: pa.Table, expected: pa.Table) -> dict[str, int]:
    """Column of floats that are not the same bits → how many floats lie between the two that are furthest apart.

    Any other difference is an AssertionError.
    """
    assert actual.schema.equals(expected.schema), (actual.schema, expected.schema)
    assert actual.num_rows == expected.num_rows
    apart = {}
    for name in expected.column_names:
        got, wanted = (_flat(table[name].combine_chunks()) for table in (actual, expected))
        assert len(got) == len(wanted), name
        for number, (part, other) in enumerate(zip(got, wanted, strict=True)):
            if part.dtype.kind == "f":
                nan = np.isnan(part)
                np.testing.assert_array_equal(nan, np.isnan(other), err_msg=name)
                distance = np.abs(_ordered(part[~nan]) - _ordered(other[~nan])).max(initial=0)
                if distance:
                    apart[name] = int(distance)
            else:
                np.testing.assert_array_equal(part, other, err_msg=f"{name}, part {number}")
    return apart


def _flat(column: pa.Array) -> list[Any]:
    """A column as arrays without lists: which rows are missing, offsets if there are any, and values."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not pa.types.is_list(column.type):
        values = column.drop_null() if column.type != pa.null() else pa.array([])
        return [valid, values.to_numpy(zero_copy_only=False)]
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return [valid, lengths, *_flat(column.flatten())]


def _ordered(floats: Any) -> Any:
    """Floats as integers in the same order, the next float the next integer; 0.0 and -0.0 are one apart."""
    bits = floats.view(f"i{floats.dtype.itemsize}").astype(object)  # of Python's: no difference overflows
    least = -(2 ** (8 * floats.dtype.itemsize - 1))
    return np.where(bits < 0, least - bits - 1, bits)
