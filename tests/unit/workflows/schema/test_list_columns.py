from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.schema.ragged import Padded, Ragged, pad, padded_rows, padded_tensors, ragged_tensors

LISTS = st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), max_size=8)


def rows_of(lists: Ragged) -> list[list[int]]:
    return [lists.values[begin:end].tolist() for begin, end in pairwise(lists.offsets)]


@given(LISTS, st.integers(0, 2))
def test_lists_are_the_same_ragged_and_padded(rows: list[list[int]], more: int) -> None:
    lists = Ragged.of_rows(rows)
    assert rows_of(lists) == rows
    assert lists.lengths.tolist() == list(map(len, rows))
    assert lists.lengths.dtype == np.int32
    width = max(map(len, rows), default=0) + more
    padded = lists.padded(width)
    assert padded.values.tolist() == [row + [0] * (width - len(row)) for row in rows]
    assert rows_of(padded.ragged()) == rows
    assert lists.padded().values.shape[1] == width - more


@given(LISTS, st.integers(0, 3))
def test_arrows_lists_are_taken_as_they_are_sliced_or_not(rows: list[list[int]], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.int64())).slice(start)
    assert rows_of(Ragged.of_arrow(array)) == rows[start:]


def test_lists_without_padding_are_not_copied() -> None:
    padded = Padded(np.arange(6).reshape(3, 2), np.full(3, 2, np.int32))
    lists = padded.ragged()
    assert np.shares_memory(lists.values, padded.values)
    assert np.shares_memory(lists.padded().values, padded.values)
    one = Padded(np.arange(4).reshape(1, 4), np.array([3], np.int32))
    assert np.shares_memory(one.ragged().values, one.values)


@pytest.mark.parametrize("lengths", [[7, 3], [6], [0, 10]])
def test_lists_that_are_longer_than_the_rows_do_not_go_on_in_the_next(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"^a list has {max(lengths)} values, expected at most 5$"):
        pad(np.arange(sum(lengths)), np.array(lengths), 5)


@pytest.mark.parametrize("rows", [[], [[]], [[b"a", b""], []], [[b"b"]]])
def test_strings_are_padded_with_empty_ones(rows: list[list[bytes]]) -> None:
    flat = np.array([value for row in rows for value in row], dtype=object)
    padded = pad(flat, np.array(list(map(len, rows)), np.int64), 2)
    assert padded.tolist() == [row + [b""] * (2 - len(row)) for row in rows]


@pytest.mark.parametrize("dtype", [np.int32, np.float64, object])
def test_many_lists_keep_their_type_and_order(dtype: type) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(-1, 30, 999).astype(np.int32)
    lists = [rng.integers(1, 99, max(length, 0)).tolist() for length in lengths]
    padded = pad(np.array([value for row in lists for value in row], dtype=dtype), lengths, 30)
    nothing = b"" if dtype is object else 0
    assert padded.dtype == dtype
    assert padded.tolist() == [row + [nothing] * (30 - len(row)) for row in lists]
    assert rows_of(Padded(padded, np.maximum(lengths, 0)).ragged()) == lists


def test_a_missing_list_is_all_padding() -> None:
    assert pad(np.array([7, 8]), np.array([-1, 2, 0]), 3).tolist() == [[0, 0, 0], [7, 8, 0], [0, 0, 0]]


@given(LISTS.filter(bool), st.booleans())
def test_encoded_rows_give_the_lists_back(rows: list[list[int]], as_arrays: bool) -> None:
    column: Any = pd.Series([np.array(row, np.int64) for row in rows] if as_arrays else rows, dtype=object)
    frame = pd.DataFrame({"tags": column, "price": np.arange(len(rows), dtype=np.float32)})
    padded = padded_rows(frame)
    values, nnzs = padded["tags__values"], padded["tags__nnzs"]
    assert (values.dtype, nnzs.dtype, nnzs.shape) == (np.int64, np.int32, (len(rows), 1))
    assert [row[:count].tolist() for row, count in zip(values, nnzs[:, 0], strict=True)] == rows
    assert not values[np.arange(values.shape[1]) >= nnzs].any()
    assert (padded["price"].dtype, padded["price"].shape) == (np.float32, (len(rows), 1))
    ragged = ragged_tensors(frame)
    assert ragged["tags__offsets"].dtype == np.int32
    assert rows_of(Ragged(values=ragged["tags__values"], offsets=ragged["tags__offsets"])) == rows
    assert ragged["price"].shape == (len(rows),)


def test_candidates_keep_their_dimension() -> None:
    tensors = padded_tensors({"item": np.ones((2, 3)), "user": np.ones(2)})
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"item": (2, 3), "user": (2, 1)}
