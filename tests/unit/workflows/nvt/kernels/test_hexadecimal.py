import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.kernels.hexadecimal import numbers_of_hex

STRINGS = (
    st.from_regex(rb"[0-9a-fA-F]{1,17}", fullmatch=True)
    | st.binary(max_size=18)
    | st.sampled_from([b"", b"0x1f", b"1_0", b" 1", b"+1", b"\0", b"f" * 15, b"f" * 16, b"00000000", b"FFFFFFFF"])
)


def strings(values: list[bytes]) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


def expected(value: bytes) -> float:
    return float(int(value, 16)) if re.fullmatch(rb"[0-9a-fA-F]{1,15}", value) else math.nan


@given(st.lists(STRINGS, min_size=1, max_size=20), st.sampled_from([1, 100]))
def test_digits_become_numbers_and_all_else_nan_however_many_rows(values: list[bytes], times: int) -> None:
    numbers = numbers_of_hex(strings(values * times))
    np.testing.assert_array_equal(numbers, [expected(value) for value in values] * times)


@given(st.lists(st.integers(0, 2**52 - 1), min_size=65, max_size=80))
def test_up_to_13_digits_are_exact(values: list[int]) -> None:
    assert numbers_of_hex(strings([b"%x" % value for value in values])).tolist() == values


@pytest.mark.parametrize("size", [0, 1, 64, 65, 200])
def test_a_slice_is_read_from_its_own_beginning(size: int) -> None:
    values = [b"%x" % value for value in range(1, 400)]
    assert numbers_of_hex(strings(values).slice(7, size)).tolist() == list(range(8, 8 + size))
