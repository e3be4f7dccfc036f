from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from rankline.training.evaluation.ranking import Ranking


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


def test_who_chose_nothing_does_not_count_and_nobody_is_no_figure() -> None:
    ranking = Ranking()
    ranking.add(np.arange(5.0), np.zeros(5, bool))
    with pytest.raises(ValueError, match="^no user chose"):
        ranking.figures()
    ranking.add(np.arange(5.0), np.arange(5) == 4)
    assert ranking.figures() == {"recall_at_20": 1.0, "ndcg_at_20": 1.0, "users": 1.0}


def test_one_score_for_all_is_chance_and_nan_is_refused() -> None:
    ranking = Ranking(5)
    ranking.add(np.full(50, 0.3), np.arange(50) < 2)
    assert ranking.figures()["recall_at_5"] == pytest.approx(5 / 50)
    with pytest.raises(ValueError, match="^scores hold NaN"):
        ranking.add(np.array([0.1, np.nan]), np.array([True, False]))
