"""Conversion of pandas columns to Arrow, and access to the elements of list columns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.nvt.keys import hash_values
from rankline.workflows.schema.arrow_types import is_text


def holds_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a string type or a dictionary of strings."""
    return is_text(kind.value_type if pa.types.is_dictionary(kind) else kind)


def flattened(series: "pd.Series[Any]") -> "tuple[pd.Series[Any], Callable[[NDArray[Any]], Any]]":
    """Return a list column's elements and a function that regroups results into lists. Other columns are unchanged."""
    if not len(series) or not isinstance(series.iloc[0], list | np.ndarray):
        return series.reset_index(drop=True), lambda values: values
    ends = np.cumsum([len(row) for row in series])
    flat = pd.Series([value for row in series for value in row], name=series.name)

    def rebuild(values: NDArray[Any]) -> "pd.Series[Any]":
        return pd.Series(np.split(values, ends[:-1]), index=series.index, dtype=object)

    return flat, rebuild


def dictionary_of(series: "pd.Series[Any]") -> pa.DictionaryArray:
    values = whole(pa.array(series))
    return values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()


def arrow_dictionary(series: "pd.Series[Any]") -> pa.DictionaryArray | None:
    """Return a dictionary-encoded Arrow column as a dictionary array, or None for other columns."""
    kind = series.dtype
    return (
        dictionary_of(series)
        if isinstance(kind, pd.ArrowDtype) and pa.types.is_dictionary(kind.pyarrow_dtype)
        else None
    )


def hashes_of(series: "pd.Series[Any]") -> NDArray[np.uint64]:
    """Return the hash of each value; 0 for missing values."""
    hashes = np.zeros(len(series), dtype=np.uint64)
    present = series.notna().to_numpy()
    hashes[present] = hash_values(plain_values(series[present]))
    return hashes


def plain_values(series: "pd.Series[Any]") -> Any:
    """Convert a column without missing values to a NumPy array of numbers or an Arrow array of UTF-8 bytes."""
    if isinstance(series.dtype, pd.ArrowDtype):
        values = decoded(whole(pa.array(series)))
        return values.cast(pa.large_binary()) if is_text(values.type) else values.to_numpy()
    is_string = series.dtype == object and isinstance(next(iter(series), None), str)
    return pa.array(series, pa.large_binary()) if is_string else series.to_numpy(series.infer_objects().dtype)


def decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


def whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
