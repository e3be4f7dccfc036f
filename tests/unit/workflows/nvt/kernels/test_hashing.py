import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.nvt.kernels.hashing import bucket_of, bucket_of_many, hash_ids, hash_strings, hash_values

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
def test_a_bucket_depends_on_the_value_alone_and_is_in_range(ids: list[int], num_buckets: int) -> None:
    together = bucket_of(np.array(ids), num_buckets)
    alone = [int(bucket_of(np.array([value]), num_buckets)[0]) for value in ids]
    assert together.tolist() == alone
    assert 0 <= together.min() <= together.max() < num_buckets


def test_hashing_leaves_its_argument_alone() -> None:
    ids = np.arange(5)
    hash_ids(ids)
    assert ids.tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8), st.integers(0, 2**15 - 1), st.integers(0, 3))
def test_strings_get_the_same_hash_alone_and_among_many(values: list[bytes], seed: int, skipped: int) -> None:
    alone = [int(hash_strings(strings([value]), seed)[0]) for value in values]
    assert hash_strings(strings(values * 20).slice(skipped), seed).tolist() == (alone * 20)[skipped:]


def test_hashes_of_strings_stay_the_same_from_version_to_version() -> None:
    hashes = hash_strings(strings([b"", b"a", "日本".encode(), b"longer than eight bytes", b"x" * 200]))
    assert hashes.tolist() == [0, 12176339470624169081, 13279766795769850781, 14359514599518912, 10205568089174323286]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 128, 129, 1000])
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


@given(st.lists(st.integers(-(2**53), 2**53), max_size=10))
def test_a_whole_number_has_one_hash_as_integer_and_as_float(values: list[int]) -> None:
    assert hash_values(np.array(values, dtype=np.int64)).tolist() == hash_values(np.array(values, np.float64)).tolist()


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
