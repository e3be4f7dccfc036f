from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor

from rankline.serving.client import ColumnSchema
from rankline.serving.client.encoding import Array, Dense, ListRows, to_dense, to_ragged
from rankline.workflows.core.errors import RequestError
from rankline.workflows.schema.tensor_names import MISSING_LIST
from rankline.workflows.schema.tensors import Tensor

INT64 = Tensor(name="userId", dtype="int64", dims=(1,))
INT32 = Tensor(name="userId", dtype="int32", dims=(1,))
FP32 = Tensor(name="price", dtype="float32", dims=(1,))
TEXT = Tensor(name="title", dtype="object", dims=(1,))
LISTS = Tensor(name="genres", dtype="int64", dims=(-1,))
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
PAIRS = Tensor(name="pair", dtype="int64", dims=(2,))


def to_tensor(values: Any, tensor: Tensor) -> Array:
    """The rows of an input without a mask as an array, [num_rows, *dims]."""
    (dense,) = to_dense(values, ColumnSchema(name=tensor.name, values=tensor))
    flat = dense.values if isinstance(dense.values, np.ndarray) else dense.values.to_numpy(zero_copy_only=False)
    return flat.reshape(dense.shape)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_containers_give_the_same_tensor(values: list[int]) -> None:
    expected = np.array(values, np.int64).reshape(-1, 1)
    for column in (
        values,
        np.array(values, np.int64),
        expected,
        pa.array(values, pa.int64()),
        pa.chunked_array([values[:1], values[1:]], pa.int64()),
        pd.Series(values, dtype="int64"),
    ):
        tensor = to_tensor(column, INT64)
        assert tensor.dtype == np.int64
        np.testing.assert_array_equal(tensor, expected)


def test_values_are_cast_when_nothing_is_lost() -> None:
    np.testing.assert_array_equal(to_tensor(np.array([1, 2], np.uint8), INT64), [[1], [2]])
    np.testing.assert_array_equal(to_tensor([3.0], INT64), [[3]])
    np.testing.assert_array_equal(to_tensor([3], FP32), [[3.0]])
    np.testing.assert_array_equal(to_tensor(pd.Series([5, 7], dtype="category"), INT64), [[5], [7]])
    np.testing.assert_array_equal(to_tensor(["Amélie", b"x"[:0].decode()], TEXT), [["Amélie".encode()], [b""]])


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_integers_of_any_width_are_taken_unchanged_or_refused(given: str, taken: str, data: Any) -> None:
    low, high = np.iinfo(given).min, np.iinfo(given).max
    values = np.array(data.draw(st.lists(st.integers(low, high), min_size=1)), given)
    tensor = Tensor(name="userId", dtype=taken, dims=(1,))
    fits = all(np.iinfo(taken).min <= value <= np.iinfo(taken).max for value in values.tolist())
    for column in (values, pa.array(values), values.reshape(-1, 1)):
        if fits:
            assert to_tensor(column, tensor).dtype == taken
            assert to_tensor(column, tensor)[:, 0].tolist() == values.tolist()
        else:
            with pytest.raises(RequestError, match="'userId' cannot be converted to"):
                to_tensor(column, tensor)


@given(st.lists(st.floats(), min_size=1))
def test_floats_are_rounded_and_stay_finite(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(values).astype(np.float32)
    if np.any(np.isinf(expected) & np.isfinite(values)):
        with pytest.raises(RequestError, match="'price' cannot be converted to FP32: .* would become infinite"):
            to_tensor(values, FP32)
    else:
        np.testing.assert_array_equal(to_tensor(values, FP32)[:, 0], expected)


@pytest.mark.parametrize(
    ("values", "tensor", "message"),
    [
        (["1"], INT64, "'userId' has values of type string, expected INT64. Convert strings such as '1' to numbers"),
        (["1", "", "-2.5e3", "nan", " inf", "x", "y"], FP32, "Convert strings such as 'x' to numbers"),
        (["1", ""], INT64, "Convert strings such as '' to numbers"),
        ([None, "2024-01-02"], INT64, r"If '2024-01-02' is a time, .*parse_dates=\['userId'\]"),
        ([1], TEXT, "'title' has values of type int64, expected BYTES"),
        ([1.5], INT64, "'userId' cannot be converted to INT64: Float.*1.5"),
        ([2**40], INT32, "'userId' cannot be converted to INT32: Integer.*1099511627776"),
        ([2**70], INT64, "'userId' cannot be read as a column of INT64 values.*too large"),
        ([1, -(2**63) - 1], INT64, "'userId' cannot be read as a column of INT64 values.*too large"),
        (np.array([[1, "a"]], dtype=object), PAIRS, "'pair' cannot be read as a column of INT64 values.*'a'"),
        ([1.0, -1e39], FP32, r"'price' cannot be converted to FP32: -1e\+39 would become infinite"),
        (5, INT64, "'userId' cannot be read as a column of INT64"),
        ("5", INT64, "'userId' is the single value '5', expected a column"),
        ([1, None, None], INT64, "'userId' has 2 nulls, which INT64 cannot represent"),
        ([[1], [1, 2]], LISTS, r"'genres' has ragged lists \(1 to 2 values, 0 nulls\)"),
        ([[1, 2]], INT64, r"'userId' has rows of shape \[2\], expected \[1\]"),
        ([1, 2], LISTS, r"'genres' has rows of shape \[\], expected \[-1\]"),
        ([[1, 2, 3]], PAIRS, r"'pair' has rows of shape \[3\], expected \[2\]"),
    ],
)
def test_columns_that_do_not_fit_are_refused(values: object, tensor: Tensor, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        to_tensor(values, tensor)


def mask_of(tensor: Tensor) -> ColumnSchema:
    mask = Tensor(name=f"{tensor.name}__valid", dtype="bool", dims=(1,))
    return ColumnSchema(name=tensor.name, values=tensor, mask=mask)


@given(st.lists(st.none() | st.integers(-(2**53), 2**53)), st.sampled_from([None, np.nan, pd.NA]))
def test_containers_give_the_same_mask(values: list[int | None], nothing: Any) -> None:
    there = [value is not None for value in values]
    pythonic = [nothing if value is None else value for value in values]
    containers = [
        pythonic,
        np.array(pythonic, dtype=object),
        pa.array(values, pa.int64()),
        pd.Series(values, dtype="Int64"),
        pd.Series(pythonic, dtype=object),
        np.array([np.nan if value is None else value for value in values], np.float64),
        pa.array([np.nan if value is None else value for value in values], pa.float64()),
    ]
    for column in containers:
        rows, *mask = to_dense(column, mask_of(INT64))
        assert rows.shape == (len(values), 1)
        assert rows.values.tolist() == [value or 0 for value in values]
        assert [part.values.tolist() for part in mask] == ([] if all(there) else [there])


def wire(column: Dense | ListRows, start: int, stop: int) -> list[Any]:
    """The tensors as the server unpacks them."""
    return [
        (deserialize_bytes_tensor(t.data) if t.schema.datatype == "BYTES" else t.data).reshape(t.shape).tolist()
        for t in column.tensors(start, stop)
    ]


LENGTHS = Tensor(name="genres__nnzs", dtype="int32", dims=(1,))
RAGGED = {
    dtype: ColumnSchema(name="genres", values=Tensor(name="genres__values", dtype=dtype, dims=(-1,)), lengths=LENGTHS)
    for dtype in ("int64", "float32", "object")
}
ELEMENTS = {"int64": st.integers(-9, 9), "float32": st.floats(width=32, allow_nan=False), "object": st.text(max_size=4)}


@given(st.sampled_from(sorted(ELEMENTS)), st.data())
def test_lists_are_padded_and_counted(dtype: str, data: st.DataObject) -> None:
    lists = data.draw(st.lists(st.none() | st.lists(ELEMENTS[dtype], max_size=4), max_size=6))
    if dtype == "object":
        lists = [None if row is None else [word.encode() for word in row] for row in lists]
    start = data.draw(st.integers(0, len(lists)))
    part = lists[start:]
    width = max([1, *(len(row or ()) for row in part)])
    nothing = b"" if dtype == "object" else 0
    expected = [(row or []) + [nothing] * (width - len(row or ())) for row in part]
    kind = {"int64": pa.int64(), "float32": pa.float32(), "object": pa.binary()}[dtype]
    objects = np.empty(len(lists), dtype=object)
    objects[:] = [None if row is None else np.array(row, dtype=object if dtype == "object" else None) for row in lists]
    for column in (lists, pa.array(lists, pa.list_(kind)), pa.array(lists, pa.large_list(kind)), pd.Series(objects)):
        values, lengths = wire(to_ragged(column, RAGGED[dtype]), start, len(lists))
        assert values == expected
        assert lengths == [[MISSING_LIST if row is None else len(row)] for row in part]


def test_lists_are_padded_to_a_fixed_width() -> None:
    column = ColumnSchema(name="pair", values=PAIRS, lengths=LENGTHS)
    assert wire(to_ragged([[1], []], column), 0, 2) == [[[1, 0], [0, 0]], [[1], [0]]]
    with pytest.raises(RequestError, match="'pair' has lists of 3 values, expected at most 2"):
        to_ragged([[1, 2, 3]], column)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], "'genres' has values of type int64, expected lists of INT64"),
        (["1|2|3"], r"'genres' has values of type string, expected lists of INT64: \[1, 2, 3\]\."),
        ([[1, None]], r"'genres' has lists with missing values, which INT64 cannot represent\. Remove the missing"),
        ([[[1]]], "'genres' has nested lists"),
        ([["a"]], "'genres__values' has values of type string, expected INT64"),
        ([[1.5]], "'genres__values' cannot be converted to INT64"),
        ([[1], 2], "'genres__values' cannot be read as a column of INT64"),
    ],
)
def test_lists_that_do_not_fit_are_refused(values: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        to_ragged(values, RAGGED["int64"])


@pytest.mark.parametrize(
    ("lists", "dtype", "values", "lengths"),
    [
        (pa.array([["a"], ["b"]], pa.list_(pa.string_view())), "object", [[b"a"], [b"b"]], [1, 1]),
        (pa.array([[1, 2], None, []], pa.list_view(pa.int64())), "int64", [[1, 2], [0, 0], [0, 0]], [2, -1, 0]),
        (pa.chunked_array([pa.array([["a"]], pa.large_list_view(pa.string()))] * 2), "object", [[b"a"]] * 2, [1, 1]),
    ],
)
def test_arrow_list_types_are_taken(lists: Any, dtype: str, values: list[Any], lengths: list[int]) -> None:
    sent, counted = wire(to_ragged(lists, RAGGED[dtype]), 0, len(values))
    assert (sent, counted) == (values, [[length] for length in lengths])


@pytest.mark.parametrize(
    ("column", "tensor", "expected"),
    [
        (pa.array(["a", None, "b" * 20], pa.string_view()), TEXT, [b"a", b"", b"b" * 20]),
        (pa.chunked_array([pa.array(["a"], pa.string_view()), pa.array(["b"], pa.string_view())]), TEXT, [b"a", b"b"]),
        (pa.chunked_array([], pa.string_view()), TEXT, []),
        (pa.array([b"a"], pa.binary_view()), TEXT, [b"a"]),
        (pa.array(["a", "b", "a"], pa.string_view()).dictionary_encode(), TEXT, [b"a", b"b", b"a"]),
        (pc.run_end_encode(pa.array([1, 1, 2])), INT64, [1, 1, 2]),
        (pc.run_end_encode(pa.array([True, True])), Tensor(name="flag", dtype="bool"), [True, True]),
        (pa.array([1.5], pa.float16()), Tensor(name="price", dtype="float64"), [1.5]),
    ],
)
def test_arrow_column_types_are_taken(column: Any, tensor: Tensor, expected: list[Any]) -> None:
    rows, *_ = to_dense(column, mask_of(tensor) if tensor.dtype != "float64" else ColumnSchema(name="p", values=tensor))
    assert rows.values.tolist() == expected
