from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.loader.gather import SLACK, gather_lists, num_values


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
