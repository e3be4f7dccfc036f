"""Operators that clean values or convert them to numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.dates import date_part
from rankline.workflows.nvt.keys import numbers_of_hex
from rankline.workflows.nvt.operators.values import arrow_dictionary, flattened, whole

from merlin.schema import Tags  # isort: skip


class GreaterThan(ops.Operator):  # type: ignore[misc]
    """An operator that maps numbers above `threshold` to 1.0 and others to 0.0, for example to binarize a graded label.

    Args:
        threshold: the largest value that counts as negative.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        return (df[col_selector.names] > self.threshold).astype("float32")

    @property
    def output_dtype(self) -> Any:
        """Return float32, the label dtype that losses expect."""
        return np.float32

    @property
    def output_tags(self) -> list[Tags]:
        return [Tags.TARGET]


class Bucketize(ops.Bucketize):  # type: ignore[misc]
    """A `Bucketize` that can be serialized as data; NVTabular's version stores its boundaries in a closure.

    Args:
        boundaries: sorted numbers for all columns, or column → sorted numbers.
    """

    def __init__(self, boundaries: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
        by_column = isinstance(boundaries, Mapping)
        super().__init__(dict(boundaries) if by_column else list(boundaries))  # type: ignore[arg-type]
        self._given = boundaries

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)


class Finite(ops.Operator):  # type: ignore[misc]
    """Replaces infinities and values too large for float32 with NaN, because models cannot process them."""

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        """Replace non-finite values in each selected column, leaving integers unchanged."""
        columns = df[col_selector.names]
        with np.errstate(over="ignore"):
            return columns.where(np.isfinite(columns.astype(np.float32)))


class HexToInt(ops.Operator):  # type: ignore[misc]
    """Converts hexadecimal strings to integers, which are smaller and faster to encode.

    Missing values stay missing, and strings that are not 1 to 15 hexadecimal digits become missing. The output is
    float64 with NaN for missing values, as all other operators expect. Integer columns would be int64 in some
    partitions and float64 in others, and a vocabulary of one type does not accept the other. Numbers of up to 13 digits
    are exact; longer ones are rounded to 53 bits, in training as in serving.

    An Arrow dictionary stays a dictionary, of distinct numbers; see `arrow_columns` for the operators that read it.
    """

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            flat, rebuild = flattened(df[name])
            if (encoded := arrow_dictionary(flat)) is not None:
                result[name] = pd.arrays.ArrowExtensionArray(_dictionary_of_hex(encoded))
            elif isinstance(flat.dtype, pd.CategoricalDtype):
                # Missing values have the code -1, which selects the last element.
                result[name] = rebuild(
                    np.append(_numbers_of_hex(flat.cat.categories), np.nan)[flat.cat.codes.to_numpy()]
                )
            else:
                result[name] = rebuild(_numbers_of_hex(flat))
        return result

    @property
    def output_dtype(self) -> Any:
        return np.float64


def _numbers_of_hex(series: "pd.Series[Any]") -> NDArray[np.float64]:
    if isinstance(series.dtype, pd.ArrowDtype):
        values = whole(pa.array(series)).cast(pa.large_binary())
    else:
        values = pa.array(series.to_numpy(dtype=object, na_value=None), pa.large_binary(), from_pandas=True)
    return numbers_of_hex(values.fill_null(b""))


def _dictionary_of_hex(strings: pa.DictionaryArray) -> pa.DictionaryArray:
    """Convert a dictionary of hex strings to numbers and merge duplicates (0a and A). Invalid strings become null."""
    numbers = numbers_of_hex(strings.dictionary.cast(pa.large_binary()).fill_null(b""))
    distinct = pa.array(numbers, from_pandas=True).dictionary_encode()
    is_same = len(distinct.dictionary) == len(numbers)
    indices = strings.indices if is_same else distinct.indices.take(strings.indices)
    return pa.DictionaryArray.from_arrays(indices, distinct.dictionary, safe=False)  # indices are valid by construction


class EmptyToNull(ops.Operator):  # type: ignore[misc]
    """Converts empty strings to missing values, and removes empty and missing strings from lists."""

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        result = df[col_selector.names].copy(deep=False)
        for name in col_selector.names:
            column = df[name]
            if (encoded := arrow_dictionary(column)) is not None:
                empty = pc.index(encoded.dictionary, pa.scalar("", encoded.dictionary.type)).as_py()
                if empty >= 0:
                    indices = pc.if_else(pc.equal(encoded.indices, empty), None, encoded.indices)
                    made = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
                    result[name] = pd.Series(pd.arrays.ArrowExtensionArray(made), index=df.index)
            elif any(isinstance(value, list | np.ndarray) for value in column.head(1)):
                rows = [[value for value in row if isinstance(value, str) and value] for row in column]
                result[name] = pd.Series(rows, index=df.index, dtype=object)
            else:
                result[name] = column.where(column != "", None)
        return result


class DateParts(ops.Operator):  # type: ignore[misc]  # NVTabular has no annotations
    """An operator that extracts date and time parts into float64 columns named COLUMN_PART, NaN for missing times.

    The input is microseconds since 1970 in UTC.

    Args:
        parts: column → names of parts, see `rankline.workflows.nvt.dates`.
    """

    def __init__(self, parts: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.parts = {name: list(of_column) for name, of_column in parts.items()}

    def column_mapping(self, col_selector: nvt.ColumnSelector) -> dict[str, list[str]]:
        return {f"{name}_{part}": [name] for name in col_selector.names for part in self.parts[name]}

    def transform(self, col_selector: nvt.ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        made = {}
        for name in col_selector.names:
            missing = df[name].isna().to_numpy()
            micros = df[name].to_numpy() if not missing.any() else df[name].fillna(0).to_numpy()
            for part in self.parts[name]:
                values = date_part(micros.astype(np.int64), part)
                made[f"{name}_{part}"] = np.where(missing, np.nan, values)
        return pd.DataFrame(made, index=df.index)

    @property
    def output_dtype(self) -> Any:
        return np.float64
