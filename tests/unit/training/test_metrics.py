import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.metrics import exact_auc, gauc, logloss

ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60)


def test_logloss_is_the_mean_negative_log_likelihood() -> None:
    got = logloss(np.array([1.0, 0.0, 1.0]), np.array([0.9, 0.2, 0.5], np.float32))
    assert got == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 3)


def test_logloss_of_a_confident_mistake_is_finite() -> None:
    assert logloss(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(-math.log(1e-7))


@given(ROWS)
def test_gauc_is_the_row_weighted_mean_of_each_groups_auc(rows: list[tuple[bool, int, int]]) -> None:
    label, score, group = (np.array(column) for column in zip(*rows, strict=True))
    total, weight = 0.0, 0
    for user in set(group.tolist()):
        of_user = group == user
        if 0 < label[of_user].sum() < of_user.sum():
            total += of_user.sum() * exact_auc(label[of_user], score[of_user])
            weight += of_user.sum()
    got = gauc(label, score.astype(np.float64), group)
    assert math.isnan(got) if weight == 0 else got == pytest.approx(total / weight)


def test_gauc_does_not_see_differences_between_groups() -> None:
    label, group = np.array([1, 0, 1, 0]), np.array([1, 1, 2, 2])
    assert gauc(label, np.array([0.2, 0.1, 0.9, 0.8]), group) == 1.0
    assert exact_auc(label, np.array([0.2, 0.1, 0.9, 0.8])) == 0.75
