from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader import columns as arrays
from rankline.training.data.loader.gather import SLACK, gather_lists, num_values
from rankline.workflows.schema.ragged import Ragged

INT64 = st.integers(-(2**63), 2**63 - 1)
LISTS = st.lists(st.lists(INT64, max_size=4), min_size=1, max_size=12)
INT = np.dtype(np.int64)


def chunked(values: Any, kind: pa.DataType | None = None, pieces: int = 1) -> pa.ChunkedArray:
    array = pa.array(values, kind)
    cuts = np.linspace(0, len(array), pieces + 1).astype(int)
    return pa.chunked_array([array.slice(a, b - a) for a, b in pairwise(cuts)], array.type)


def plain(column: Any) -> list[Any]:
    if isinstance(column, Ragged):
        return [part.tolist() for part in np.split(column.values, column.offsets[1:-1])]
    return list(column.tolist())


@given(lists=LISTS, pieces=st.integers(1, 3), data=st.data())
def test_lists_survive_reading_joining_gathering_and_cutting(lists: Any, pieces: int, data: Any) -> None:
    column = arrays.from_arrow(chunked(lists, pa.list_(pa.int64()), pieces))
    assert plain(column) == lists
    joined = arrays.concatenate([column, column])
    assert plain(joined) == lists + lists
    assert joined.offsets[0] == 0  # type: ignore[union-attr]
    rows = data.draw(st.lists(st.integers(0, 2 * len(lists) - 1), min_size=1, max_size=20))
    taken = arrays.take(joined, np.array(rows), INT)
    assert plain(taken) == [(lists + lists)[row] for row in rows]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    if start < stop:
        assert plain(arrays.slice_rows(taken, start, stop)) == plain(taken)[start:stop]
        assert arrays.slice_rows(taken, start, stop).lengths.tolist() == [len(row) for row in plain(taken)[start:stop]]  # type: ignore[union-attr]


@given(values=st.lists(INT64, min_size=1, max_size=20), data=st.data())
def test_narrowed_integers_come_back_as_they_were(values: list[int], data: Any) -> None:
    column = arrays.from_arrow(chunked(values, pa.int64()))
    narrow = arrays.narrow_dtype(INT, *arrays.min_max(column))
    smaller = arrays.concatenate([column], narrow)
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1))
    taken = arrays.take(smaller, np.array(rows), INT)
    assert taken.ctypes.data % 64 == 0  # type: ignore[union-attr]  # so that TensorFlow need not copy it
    assert arrays.value_dtype(taken) == INT
    assert plain(taken) == [values[row] for row in rows]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 127, "int8"), (0, 128, "int16"), (-129, 0, "int16"), (0, 2**31 - 1, "int32"), (0, 2**31, "int64")],
)
def test_narrowest_type_that_holds_the_values_is_taken(low: int, high: int, expected: str) -> None:
    assert arrays.narrow_dtype(INT, low, high) == np.dtype(expected)
    assert arrays.narrow_dtype(np.dtype(np.int8), low, high) == np.dtype(np.int8)
    assert arrays.narrow_dtype(np.dtype(np.float32), low, high) == np.dtype(np.float32)


def test_column_in_one_piece_is_read_without_a_copy() -> None:
    flat, lists = chunked([1.5, 2.5], pa.float32()), chunked([[1, 2], [3]], pa.list_(pa.int64()))
    for array, view in (
        (flat.chunk(0), arrays.from_arrow(flat)),
        (lists.chunk(0).values, arrays.from_arrow(lists).values),  # type: ignore[union-attr]
    ):
        assert np.shares_memory(array.to_numpy(), view)
        assert np.shares_memory(view, arrays.slice_rows(view, 0, 1))


def test_fixed_length_lists_are_matrices() -> None:
    column = chunked([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2), pieces=2)
    assert arrays.from_arrow(column).tolist() == [[1, 2], [3, 4], [5, 6]]  # type: ignore[union-attr]
    assert arrays.from_arrow(column.slice(1)).tolist() == [[3, 4], [5, 6]]  # type: ignore[union-attr]
    taken = arrays.take(arrays.from_arrow(column), np.array([2, 0]), INT)
    assert plain(taken) == [[5, 6], [1, 2]]


@pytest.mark.parametrize(
    ("values", "kind", "count", "filled"),
    [
        ([1, None, 3], pa.int64(), 1, [1, 7, 3]),
        ([True, False], pa.bool_(), 0, [1, 0]),
        ([[1], None, [2, None], []], pa.list_(pa.int64()), 2, [[1], [], [2, 7], []]),
        ([[1], None], pa.large_list(pa.int64()), 1, [[1], []]),
        ([[1, None], [2, 3]], pa.list_(pa.int64(), 2), 1, [[1, 7], [2, 3]]),
    ],
    ids=["single", "bool", "list", "large list", "fixed list"],
)
def test_nulls_are_counted_and_filled(values: Any, kind: pa.DataType, count: int, filled: Any) -> None:
    column = chunked(values, kind, pieces=2)
    assert arrays.num_nulls(column) == count
    full = arrays.fill_nulls(column, 7)
    assert arrays.num_nulls(full) == 0
    assert plain(arrays.from_arrow(full)) == filled


@given(lists=LISTS)
def test_ends_are_the_smallest_and_the_largest_value(lists: Any) -> None:
    values = [value for row in lists for value in row]
    found = arrays.min_max(arrays.from_arrow(chunked(lists, pa.list_(pa.int64()))))
    assert found == ((min(values), max(values)) if values else (0, 0))


@pytest.mark.parametrize("kind", [pa.ListViewArray, pa.LargeListViewArray])
def test_lists_that_lie_in_any_order_are_read_in_the_order_of_the_rows(kind: Any) -> None:
    views = kind.from_arrays(
        [1, 0, 0, 2], [2, 0, 3, 1], pa.array([5, None, 7]), mask=pa.array([False, True, False, False])
    )
    column = pa.chunked_array([views, views.slice(2)])
    assert arrays.is_numeric(column.type)
    assert arrays.num_nulls(column) == 4
    numbers = arrays.from_arrow(arrays.fill_nulls(column, 6))
    assert isinstance(numbers, Ragged)
    assert numbers.values.tolist() == [6, 7, 5, 6, 7, 7, 5, 6, 7, 7]
    assert numbers.offsets.tolist() == [0, 2, 2, 5, 6, 9, 10]
    whole = arrays.from_arrow(pa.chunked_array([kind.from_arrays([1, 0], [2, 2], pa.array([5, 6, 7]))]))
    assert isinstance(whole, Ragged)
    assert (whole.values.tolist(), whole.offsets.tolist()) == ([6, 7, 5, 6], [0, 2, 4])


@given(
    lists=st.lists(st.lists(st.integers(-128, 127), max_size=2 * SLACK + 1), min_size=1, max_size=12),
    rows=st.lists(st.integers(0, 11), max_size=30),
)
@pytest.mark.parametrize(("dtype", "out_dtype"), [("int8", "int64"), ("int64", "int64"), ("float32", "float32")])
def test_lists_are_copied_whole(dtype: str, out_dtype: str, lists: list[list[int]], rows: list[int]) -> None:
    rows = [row % len(lists) for row in rows]
    values = np.array([value for values in lists for value in values], dtype)
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    expected: list[Any] = [value for row in rows for value in lists[row]]
    assert num_values(offsets, np.array(rows, np.intp)) == len(expected)
    out = np.zeros(len(expected) + SLACK, out_dtype)
    out_offsets = np.zeros(len(rows) + 1, np.int32)
    gather_lists(values, offsets, np.array(rows, np.intp), out, out_offsets)
    assert out[: len(expected)].tolist() == expected
    assert out_offsets.tolist() == np.cumsum([0, *(len(lists[row]) for row in rows)]).tolist()
