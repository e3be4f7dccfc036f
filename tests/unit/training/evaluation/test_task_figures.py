"""Figures of regression and of several classes, counted by hand; rows that came more than once count so often."""

from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from rankline.training.evaluation.metrics import accuracy, class_logloss, confidence_error, macro_f1, mae, r2, rmse
from rankline.training.evaluation.ranking import Ranking
from rankline.training.evaluation.scored_rows import ScoredRows

NUMBERS = ScoredRows(
    labels=np.array([1.0, 2.0, 6.0], np.float32),
    scores=np.array([2.0, 2.0, 4.0], np.float32),
    counts=np.array([2, 1, 1]),
)
CHANCES = [[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.6, 0.0, 0.4]]
KINDS = ScoredRows(labels=np.array([0.0, 2.0, 2.0]), scores=np.array(CHANCES), counts=np.array([2, 1, 1]))


def test_regression_figures_are_those_of_their_formulas() -> None:
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


def test_class_logloss_takes_the_chance_of_the_right_class() -> None:
    expected = -(2 * np.log(0.5) + np.log(1e-7) + np.log(0.4)) / 4
    assert class_logloss(KINDS) == pytest.approx(expected)
    assert class_logloss(ScoredRows.of(np.array([0.0]), np.array([[1.0, 0.0]]))) == 0
    with pytest.raises(ValueError, match=r"^labels contain values other than the indices of the 3 classes\.$"):
        class_logloss(ScoredRows.of(np.array([0.5]), np.array(CHANCES[:1])))


def test_first_of_equally_likely_classes_is_the_one_that_is_said() -> None:
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


def of_order(order: tuple[int, ...], relevant: np.ndarray, first: int) -> tuple[float, float]:
    hits = [bool(relevant[item]) for item in order[:first]]
    best = min(int(relevant.sum()), first)
    gain = sum(hit / np.log2(place + 2) for place, hit in enumerate(hits))
    return sum(hits) / best, gain / sum(1 / np.log2(place + 2) for place in range(best))


def by_definition(scores: np.ndarray, relevant: np.ndarray, first: int) -> tuple[float, float]:
    """The mean over all orders that the scores allow."""
    orders = [order for order in permutations(range(len(scores))) if (np.diff(scores[list(order)]) <= 0).all()]
    figures = [of_order(order, relevant, first) for order in orders]
    return fmean(recall for recall, _ in figures), fmean(ndcg for _, ndcg in figures)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6), st.integers(1, 7))
def test_figures_are_the_mean_over_the_orders_of_ties(items: list[tuple[int, bool]], first: int) -> None:
    scores, relevant = (np.array(column) for column in zip(*items, (0, True), strict=True))
    ranking = Ranking(first)
    ranking.add(scores.astype(np.float32), relevant)
    figures = ranking.figures()
    expected = by_definition(scores, relevant, first)
    assert (figures[f"recall_at_{first}"], figures[f"ndcg_at_{first}"]) == pytest.approx(expected)


def test_ndcg_is_that_of_scikit_learn_and_users_count_alike() -> None:
    rng = np.random.default_rng(1)
    scores, relevant = rng.normal(size=(30, 500)), rng.random((30, 500)) < 0.02
    relevant[:, 0] |= ~relevant.any(axis=1)
    ranking = Ranking()
    for of_user, chosen in zip(scores, relevant, strict=True):
        ranking.add(of_user, chosen)
    figures = ranking.figures()
    assert figures["ndcg_at_20"] == pytest.approx(ndcg_score(relevant, scores, k=20))
    assert figures["users"] == 30


def test_ranking_ignores_users_without_choices() -> None:
    ranking = Ranking()
    ranking.add(np.arange(5.0), np.zeros(5, bool))
    with pytest.raises(ValueError, match="^no user chose"):
        ranking.figures()
    ranking.add(np.arange(5.0), np.arange(5) == 4)
    assert ranking.figures() == {"recall_at_20": 1.0, "ndcg_at_20": 1.0, "users": 1.0}


def test_recall_of_constant_scores_is_chance_and_nan_is_rejected() -> None:
    ranking = Ranking(5)
    ranking.add(np.full(50, 0.3), np.arange(50) < 2)
    assert ranking.figures()["recall_at_5"] == pytest.approx(5 / 50)
    with pytest.raises(ValueError, match="^scores contain NaN"):
        ranking.add(np.array([0.1, np.nan]), np.array([True, False]))
