import numpy as np
import pytest

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.confidence import MEASURABLE, Difference, difference, standard_error, wilson_interval

RNG = np.random.default_rng(7)
NUM_ROWS = 300
LABELS = (RNG.random(NUM_ROWS) < 0.3).astype(np.float32)
SCORES = np.round(1 / (1 + np.exp(-RNG.normal(size=(2, NUM_ROWS)) - LABELS)), 2).astype(np.float32)  # with ties


def delong(labels: Array, scores: Array) -> tuple[Array, Array]:
    """What each positive and each negative row adds to AUC, pair by pair."""
    positive, negative = scores[labels > 0.5][:, None], scores[labels < 0.5][None]
    right = (positive > negative) + 0.5 * (positive == negative)
    return right.mean(axis=1), right.mean(axis=0)


def jackknife(name: str, paired: tuple[Array, Array]) -> float:
    """Standard error of a difference from what it is without each of the rows."""
    kept = [np.delete(np.arange(NUM_ROWS), row) for row in range(NUM_ROWS)]
    without = [difference(name, *((LABELS[rows], scores[rows]) for scores in paired)).change for rows in kept]
    return float(np.sqrt((NUM_ROWS - 1) * np.var(without)))


def test_auc_of_the_same_rows_is_compared_as_delong_et_al_do() -> None:
    found = difference("auc", (LABELS, SCORES[0]), (LABELS, SCORES[1]))
    (before_positive, before_negative), (after_positive, after_negative) = (delong(LABELS, own) for own in SCORES)
    expected = np.var(after_positive - before_positive, ddof=1) / LABELS.sum()
    expected += np.var(after_negative - before_negative, ddof=1) / (1 - LABELS).sum()
    assert found.before == pytest.approx(before_positive.mean())
    assert found.after == pytest.approx(after_positive.mean())
    assert found.error == pytest.approx(np.sqrt(expected), rel=0.01)  # which divides by one row less in each class
    assert found.is_paired


@pytest.mark.parametrize("name", ["auc", "logloss", "rmse"])
def test_error_is_that_of_leaving_rows_out(name: str) -> None:
    found = difference(name, (LABELS, SCORES[0]), (LABELS, SCORES[1]))
    assert found.error == pytest.approx(jackknife(name, (SCORES[0], SCORES[1])), rel=0.03)


def test_multiclass_logloss_uses_the_true_class_probability() -> None:
    labels = RNG.integers(0, 3, NUM_ROWS).astype(np.float32)
    before, after = (RNG.dirichlet(np.ones(3), NUM_ROWS).astype(np.float32) for _ in range(2))
    found = difference("logloss", (labels, before), (labels, after))
    own = np.arange(NUM_ROWS), labels.astype(int)
    added = np.log(before[own].astype(float)) - np.log(after[own].astype(float))
    assert found.change == pytest.approx(added.mean())
    assert found.error == pytest.approx(added.std(ddof=1) / np.sqrt(NUM_ROWS))


def test_identical_scores_are_not_better() -> None:
    found = difference("auc", (LABELS, SCORES[0]), (LABELS, SCORES[0]))
    assert (found.change, found.error, found.is_sure) == (0, 0, False)


def test_unpaired_comparison_adds_both_errors() -> None:
    half = NUM_ROWS // 2
    parts = [(LABELS[rows], SCORES[0][rows]) for rows in (slice(half), slice(half, None))]
    found = difference("auc", *parts)
    alone = [difference("auc", part, (part[0], np.zeros_like(part[1]))).error for part in parts]
    assert not found.is_paired
    assert found.error == pytest.approx(np.hypot(*alone))


def test_sure_difference_lies_on_one_side_of_zero() -> None:
    assert Difference(before=0.7, after=0.72, error=0.01, is_paired=True).is_sure
    assert not Difference(before=0.7, after=0.72, error=0.011, is_paired=True).is_sure
    assert Difference(before=0.72, after=0.7, error=0.01, is_paired=True).bounds[1] < 0


def test_influence_is_the_derivative_by_row_weights() -> None:
    labels, scores = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.9, 0.9, 0.25, 0.1])  # of which two are tied
    ranks = {"auc": np.array([0.75, 0.25, 0.5, 1.0]), "logloss": -np.log([0.9, 0.1, 0.25, 0.9])}
    auc = MEASURABLE["auc"](labels, scores)
    assert auc.tolist() == pytest.approx(((ranks["auc"] - 0.625) * 2).tolist())
    assert MEASURABLE["logloss"](labels, scores).tolist() == pytest.approx(ranks["logloss"].tolist())
    squares = np.array([0.01, 0.81, 0.5625, 0.01])
    root = np.sqrt(squares.mean())
    assert MEASURABLE["rmse"](labels, scores).tolist() == pytest.approx((squares / (2 * root)).tolist())
    assert MEASURABLE["rmse"](labels, labels).tolist() == [0, 0, 0, 0]
    assert MEASURABLE["logloss"](np.ones(1), np.zeros(1)).tolist() == pytest.approx([-np.log(1e-7)])


def test_standard_error_needs_two_rows() -> None:
    assert standard_error(np.array([1.0, 3.0])) == 1
    assert np.isnan(standard_error(np.array([1.0])))
    assert standard_error(np.array([1.0, 3.0]), np.zeros(2)) == 1  # a single group says nothing of others


def test_rows_of_a_group_count_as_one() -> None:
    rows, groups = np.tile(np.arange(NUM_ROWS), 4), np.tile(np.arange(NUM_ROWS) * 3, 4)
    pairs = [(LABELS, scores) for scores in SCORES]
    once, often = difference("auc", *pairs), [(labels[rows], scores[rows]) for labels, scores in pairs]
    for own in ([groups, groups], [groups, None], [None, groups]):
        assert difference("auc", *often, groups=own).error == pytest.approx(once.error)
    assert difference("auc", *often).error == pytest.approx(once.error / 2, rel=0.01)


@pytest.mark.parametrize(("share", "count", "bounds"), [(0.0, 82, (0.0, 0.0448)), (0.5, 10, (0.2366, 0.7634))])
def test_interval_of_a_share_has_a_width(share: float, count: int, bounds: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(bounds, abs=1e-4)


def test_rows_without_a_label_are_the_same_rows() -> None:
    labels = np.array([1.0, np.nan])
    with np.errstate(invalid="ignore"):
        found = difference("rmse", (labels, np.zeros(2)), (labels, np.zeros(2)))
    assert found.is_paired
