"""Numbers of dates, hashes and hexadecimal digits."""

import math
import re
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.dates import PARTS, date_part
from rankline.workflows.nvt.keys import (
    bucket_of,
    bucket_of_many,
    hash_ids,
    hash_strings,
    hash_values,
    numbers_of_hex,
    sorted_distinct,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def splitmix_finaliser(word: int) -> int:
    """The same function, on Python's own integers."""
    word &= MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def strings(values: list[bytes]) -> pa.LargeBinaryArray:
    return pa.array(values, pa.large_binary())


@given(st.lists(INT64, max_size=20))
def test_hash_is_splitmix64s_finaliser(ids: list[int]) -> None:
    assert hash_ids(np.array(ids, dtype=np.int64)).tolist() == [splitmix_finaliser(value) for value in ids]


@given(st.lists(INT64, min_size=1, max_size=20), st.integers(1, 1000))
def test_bucket_depends_on_the_value_alone_and_is_in_range(ids: list[int], num_buckets: int) -> None:
    together = bucket_of(np.array(ids), num_buckets)
    alone = [int(bucket_of(np.array([value]), num_buckets)[0]) for value in ids]
    assert together.tolist() == alone
    assert 0 <= together.min() <= together.max() < num_buckets


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8), st.integers(0, 2**15 - 1), st.integers(0, 3))
def test_strings_get_the_same_hash_alone_and_among_many(values: list[bytes], seed: int, skipped: int) -> None:
    alone = [int(hash_strings(strings([value]), seed)[0]) for value in values]
    assert hash_strings(strings(values * 20).slice(skipped), seed).tolist() == (alone * 20)[skipped:]


def test_hashes_of_strings_stay_the_same_from_version_to_version() -> None:
    hashes = hash_strings(strings([b"", b"a", "日本".encode(), b"longer than eight bytes", b"x" * 200]))
    assert hashes.tolist() == [0, 12176339470624169081, 13279766795769850781, 14359514599518912, 10205568089174323286]


@pytest.mark.parametrize("length", [0, 1, 8, 129])
def test_strings_that_differ_a_little_have_other_hashes(length: int) -> None:
    string = b"x" * length
    near = [string, string + b"\0", string + b"x", b"y" + string, *([string[:-1] + b"y"] if length else [])]
    assert len(set(hash_strings(strings(near)).tolist())) == len(near)
    assert hash_strings(strings([string]), 1) != hash_strings(strings([string]), 2)


def test_hashes_of_many_strings_are_all_different_and_spread_evenly() -> None:
    hashes = hash_strings(strings([b"user_%d" % i for i in range(100_000)]))
    assert len(np.unique(hashes)) == 100_000
    counts = np.bincount((hashes >> np.uint64(60)).astype(np.int64), minlength=16)
    assert counts.min() > 0.95 * 100_000 / 16


@given(st.lists(st.floats(allow_nan=False), max_size=10))
def test_floats_are_hashed_by_value(values: list[float]) -> None:
    hashes = hash_values(np.array(values))
    for value, hashed in zip(values, hashes, strict=True):
        assert hashed == hash_values(np.array([value + 0.0]))[0]


def test_buckets_of_columns_depend_on_every_column_and_their_order() -> None:
    a, b = hash_values(np.arange(1000)), hash_values(np.arange(1000) + 7)
    together, turned = bucket_of_many([a, b], 1 << 20), bucket_of_many([b, a], 1 << 20)
    assert (together != turned).mean() > 0.99
    assert (together != bucket_of_many([a], 1 << 20)).mean() > 0.99
    same = bucket_of_many([a, a], 1 << 20)
    assert len(np.unique(same)) > 990  # equal values in both columns do not cancel out


EPOCH = datetime(1970, 1, 1)
EXPECTED = {
    "year": lambda time: time.year,
    "month": lambda time: time.month,
    "day": lambda time: time.day,
    "weekday": lambda time: time.weekday(),
    "hour": lambda time: time.hour,
    "minute": lambda time: time.minute,
    "day_of_year": lambda time: time.timetuple().tm_yday,
    "elapsed_days": lambda time: (time - EPOCH).days,
}


@pytest.mark.parametrize("part", PARTS)
@given(times=st.lists(st.datetimes(), min_size=1, max_size=20))
def test_parts_are_those_of_pythons_calendar(part: str, times: list[datetime]) -> None:
    micros = np.array([(time - EPOCH) // timedelta(microseconds=1) for time in times], dtype=np.int64)
    assert date_part(micros, part).tolist() == [EXPECTED[part](time) for time in times]


def test_date_part_accepts_any_int64() -> None:
    limits = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0])
    for part in PARTS:
        assert np.isfinite(date_part(limits, part)).all()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@given(values=st.lists(st.integers(0, 20) | st.integers(0, 2**63 - 1)))
def test_sorted_distinct_returns_unique_sorted_values(dtype: type[np.generic], values: list[int]) -> None:
    found = sorted_distinct(np.array(values, dtype))
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(values))


STRINGS = (
    st.from_regex(rb"[0-9a-fA-F]{1,17}", fullmatch=True)
    | st.binary(max_size=18)
    | st.sampled_from([b"", b"0x1f", b"1_0", b" 1", b"+1", b"\0", b"f" * 15, b"f" * 16, b"00000000", b"FFFFFFFF"])
)


def expected(value: bytes) -> float:
    return float(int(value, 16)) if re.fullmatch(rb"[0-9a-fA-F]{1,15}", value) else math.nan


@given(st.lists(STRINGS, min_size=1, max_size=20), st.sampled_from([1, 100]))
def test_digits_become_numbers_and_all_else_nan_however_many_rows(values: list[bytes], times: int) -> None:
    numbers = numbers_of_hex(strings(values * times))
    np.testing.assert_array_equal(numbers, [expected(value) for value in values] * times)


@pytest.mark.parametrize("size", [0, 65])
def test_slice_is_read_from_its_own_beginning(size: int) -> None:
    values = [b"%x" % value for value in range(1, 400)]
    assert numbers_of_hex(strings(values).slice(7, size)).tolist() == list(range(8, 8 + size))
