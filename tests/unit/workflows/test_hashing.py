import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workflows.hashing import bucket_of, hash_ids

INT64 = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def splitmix_finaliser(word: int) -> int:
    """The same function, on Python's own integers."""
    word &= MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


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
