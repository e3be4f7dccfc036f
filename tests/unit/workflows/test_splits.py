import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workflows.errors import ConfigError
from workflows.splits import random_split, time_split

SHARES = st.integers(1, 99).map(lambda percent: percent / 100)


def assert_sizes(train, valid, num_rows, share):
    percent = round(share * 100)
    assert len(valid) == math.ceil(num_rows * percent / 100)
    assert sorted(np.concatenate((train, valid))) == list(range(num_rows))


@given(num_rows=st.integers(2, 500), share=SHARES, seed=st.integers(0, 2**32))
def test_random_split_is_disjoint_complete_and_of_the_asked_size(num_rows, share, seed):
    assume(math.ceil(num_rows * round(share * 100) / 100) < num_rows)
    train, valid = random_split(num_rows, share, seed)
    assert_sizes(train, valid, num_rows, share)


def test_random_split_validates_on_the_end_of_the_permutation():
    order = np.random.default_rng(42).permutation(100_836)
    train, valid = random_split(100_836, 0.2, 42)
    assert (len(train), len(valid)) == (80_668, 20_168)
    np.testing.assert_array_equal(train, order[:80_668])
    np.testing.assert_array_equal(valid, order[80_668:])


def test_another_seed_splits_otherwise():
    assert set(random_split(1000, 0.2, 1)[1]) != set(random_split(1000, 0.2, 2)[1])


@given(timestamps=st.lists(st.integers(0, 20), min_size=2, max_size=200), share=SHARES)
def test_time_split_validates_on_the_latest_rows_and_keeps_the_order_of_ties(timestamps, share):
    num_rows = len(timestamps)
    assume(math.ceil(num_rows * round(share * 100) / 100) < num_rows)
    train, valid = time_split(timestamps, share)
    assert_sizes(train, valid, num_rows, share)
    order = [(timestamps[row], row) for row in (*train, *valid)]
    assert order == sorted(order)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        random_split(100, share, 1)


@pytest.mark.parametrize(("num_rows", "share"), [(0, 0.2), (1, 0.2), (3, 0.9)])
def test_an_empty_part_is_refused(num_rows, share):
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        random_split(num_rows, share, 1)
    with pytest.raises(ConfigError, match="expected rows in both parts"):
        time_split(list(range(num_rows)), share)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -1"):
        random_split(100, 0.2, -1)
