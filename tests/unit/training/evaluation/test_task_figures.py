"""Figures of regression and of several classes, counted by hand; rows that came more than once count so often."""

import numpy as np
import pytest

from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.training.evaluation.tasks import accuracy, class_logloss, confidence_error, macro_f1, mae, r2, rmse

NUMBERS = ScoredRows(
    labels=np.array([1.0, 2.0, 6.0], np.float32),
    scores=np.array([2.0, 2.0, 4.0], np.float32),
    counts=np.array([2, 1, 1]),
)
CHANCES = [[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.6, 0.0, 0.4]]
KINDS = ScoredRows(labels=np.array([0.0, 2.0, 2.0]), scores=np.array(CHANCES), counts=np.array([2, 1, 1]))


def test_numbers_are_judged_by_their_differences() -> None:
    assert rmse(NUMBERS) == pytest.approx(np.sqrt((2 * 1 + 0 + 4) / 4))
    assert mae(NUMBERS) == pytest.approx((2 * 1 + 0 + 2) / 4)
    mean = (2 * 1 + 2 + 6) / 4
    spread = (2 * (1 - mean) ** 2 + (2 - mean) ** 2 + (6 - mean) ** 2) / 4
    assert r2(NUMBERS) == pytest.approx(1 - 1.5 / spread)
    alike = ScoredRows.of(np.full(3, 7.0), np.array([7.0, 8.0, 7.0]))
    assert np.isnan(r2(alike))
    narrow = ScoredRows.of(np.array([7.0, 7.5]), np.array([7.0, 7.5]))
    assert r2(narrow) == 1


def test_differences_are_those_of_the_scores_in_64_bits() -> None:
    large = ScoredRows.of(np.array([2.0**24 + 1]), np.array([2.0**24], np.float32))
    assert mae(large) == rmse(large) == 1


def test_classes_are_judged_by_the_chance_of_the_right_one() -> None:
    expected = -(2 * np.log(0.5) + np.log(1e-7) + np.log(0.4)) / 4
    assert class_logloss(KINDS) == pytest.approx(expected)
    assert class_logloss(ScoredRows.of(np.array([0.0]), np.array([[1.0, 0.0]]))) == 0
    with pytest.raises(ValueError, match=r"^labels hold values other than the numbers of 3 classes\.$"):
        class_logloss(ScoredRows.of(np.array([0.5]), np.array(CHANCES[:1])))


def test_the_first_of_equally_likely_classes_is_the_one_that_is_said() -> None:
    assert accuracy(KINDS) == 2 / 4
    assert accuracy(ScoredRows.of(np.array([1.0, 1.0, 0.0]), np.array([[0.2, 0.8], [0.5, 0.5], [0.1, 0.9]]))) == 1 / 3


def test_f1_is_the_mean_over_the_classes_that_a_row_has_or_is_said_to_have() -> None:
    # Class 0 has 2 rows and is said of 3, class 1 has none and is said of 1, class 2 has 2 and is said of none.
    assert macro_f1(KINDS) == pytest.approx((2 * 2 / (2 + 3) + 0 + 0) / 3)
    without = ScoredRows.of(np.array([0.0]), np.array([[0.9, 0.1, 0.0, 0.0]]))
    assert macro_f1(without) == 1


def test_confidence_is_held_against_how_often_it_is_right_in_15_bins() -> None:
    # Said with 0.5 and right (twice), with 0.8 and wrong, with 0.6 and wrong: bins 8, 12 and 9.
    assert confidence_error(KINDS) == pytest.approx((2 * 0.5 + 0.8 + 0.6) / 4)
    # 8/15 is the end of the bin of 0.5: the two are held against the share of both.
    end = 8 / 15
    both = ScoredRows.of(np.array([0.0, 1.0]), np.array([[0.5, 0.4], [end, 1 - end]]))
    assert confidence_error(both) == pytest.approx(abs(1 - 0.5 - end) / 2)
    sure = ScoredRows.of(np.array([0.0]), np.array([[1.0, 0.0]]))
    assert confidence_error(sure) == 0
    for right, wrong in ((0.05, 0.1), (0.9, 0.99)):  # in two bins, at either end
        ends = ScoredRows.of(np.array([0.0, 1.0]), np.array([[right, 0.0], [wrong, 0.0]]))
        assert confidence_error(ends) == pytest.approx((1 - right + wrong) / 2)
    unsure = ScoredRows.of(np.array([0.0, 1.0]), np.array([[0.0, 0.0], [0.02, 0.01]]))
    assert confidence_error(unsure) == pytest.approx(abs(1 - 0.0 - 0.02) / 2)
