import math

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import example, given
from hypothesis import strategies as st

from rankline.training.evaluation import METRICS, evaluate_task, quality
from rankline.training.evaluation.metrics import calibration, calibration_error, gauc, logloss, thresholded_auc
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.targets import BINARY

of = ScoredRows.of
ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60)


def test_logloss_is_the_mean_negative_log_likelihood() -> None:
    got = logloss(of(np.array([1.0, 0.0, 1.0]), np.array([0.9, 0.2, 0.5], np.float32)))
    assert got == pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 3)


def test_logloss_of_a_confident_mistake_is_finite() -> None:
    assert logloss(of(np.array([1.0, 0.0]), np.array([0.0, 1.0]))) == pytest.approx(-math.log(1e-7))


@given(ROWS)
def test_gauc_is_the_row_weighted_mean_of_each_groups_auc(rows: list[tuple[bool, int, int]]) -> None:
    label, score, group = (np.array(column) for column in zip(*rows, strict=True))
    total, weight = 0.0, 0
    for user in set(group.tolist()):
        of_user = group == user
        if 0 < label[of_user].sum() < of_user.sum():
            total += of_user.sum() * exact_auc(label[of_user], score[of_user])
            weight += of_user.sum()
    got = gauc(of(label, score.astype(np.float64), group))
    assert math.isnan(got) if weight == 0 else got == pytest.approx(total / weight)


def test_gauc_does_not_see_differences_between_groups() -> None:
    label, group = np.array([1, 0, 1, 0]), np.array([1, 1, 2, 2])
    assert gauc(of(label, np.array([0.2, 0.1, 0.9, 0.8]), group)) == 1.0
    assert exact_auc(label, np.array([0.2, 0.1, 0.9, 0.8])) == 0.75


def keras_auc(label: object, score: object, num_thresholds: int) -> float:
    metric = keras.metrics.AUC(num_thresholds=num_thresholds)
    metric.update_state(label, score)
    return float(metric.result())


SCORES = st.one_of(st.integers(0, 20).map(lambda n: n / 20), st.floats(0, 1, width=32))


@given(st.lists(st.tuples(st.booleans(), SCORES), max_size=40), st.sampled_from([2, 3, 21, 200]))
@example([(True, 0.0), (False, 1.0)], 200)
def test_thresholded_auc_is_that_of_keras(rows: list[tuple[bool, float]], num_thresholds: int) -> None:
    label, score = (np.array(column) for column in zip(*rows, (True, 0.5), (False, 0.5), strict=True))
    expected = keras_auc(label, score.astype(np.float32), num_thresholds)
    assert thresholded_auc(of(label, score), num_thresholds) == pytest.approx(expected, abs=1e-6)


def test_thresholds_tie_what_lies_between_them_and_many_of_them_tie_nothing() -> None:
    rng = np.random.default_rng(0)
    label = rng.random(500) < 0.5
    score = 0.0102 + 0.004 * rng.random(500) + 0.0005 * label  # between two of 200 thresholds
    assert thresholded_auc(of(label, score)) == pytest.approx(0.5)
    assert thresholded_auc(of(label, score), 1_000_000) == pytest.approx(exact_auc(label, score), abs=1e-3)
    assert exact_auc(label, score) > 0.55


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_thresholded_auc_needs_two_classes(label: float) -> None:
    with pytest.raises(ValueError, match="both classes"):
        thresholded_auc(of(np.full(3, label), np.array([0.1, 0.2, 0.3])))


def test_calibration_is_what_was_predicted_by_what_happened() -> None:
    score = np.full(1_000_000, 0.3, np.float32)
    assert calibration(of(np.arange(1_000_000) % 4 == 0, score)) == pytest.approx(0.3 / 0.25, rel=1e-6)


def test_quality_has_every_figure_and_that_of_groups_where_there_is_one() -> None:
    label, score = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.9, 0.2, 0.4, 0.6])
    figures = quality(label, score, np.array([1, 1, 2, 2]))
    assert figures == {
        "auc": exact_auc(label, score),
        "auc_200_thresholds": pytest.approx(0.75),
        "logloss": logloss(of(label, score)),
        "calibration": pytest.approx(1.05),
        "calibration_error": pytest.approx(calibration_error(of(label, score))),
        "gauc": 0.5,
    }
    assert "gauc" not in quality(label, score)
    assert "gauc" not in quality(label, score, np.arange(4))


def error_by_definition(labels: np.ndarray, scores: np.ndarray, num_bins: int = 15) -> float:
    bins: dict[int, list[float]] = {}
    for label, score in zip(labels.tolist(), scores.tolist(), strict=True):
        middle = (np.sum(scores < score) + np.sum(scores <= score)) / 2
        bins.setdefault(int(middle * num_bins / len(scores)), []).append(score - label)
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(scores)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20).map(lambda n: n / 20)), min_size=1, max_size=60))
def test_calibration_error_is_the_gap_of_bins_of_equally_many_rows(rows: list[tuple[bool, float]]) -> None:
    labels, scores = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    assert calibration_error(of(labels, scores)) == pytest.approx(error_by_definition(labels, scores), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 3), st.integers(1, 4)), min_size=1))
def test_rows_that_come_several_times_count_as_often(rows: list[tuple[bool, int, int, int]]) -> None:
    rows += [(True, 3, 0, 1), (False, 3, 0, 1)]
    label, twentieth, group, count = (np.array(column) for column in zip(*rows, strict=True))
    score = (twentieth / 20).astype(np.float32)
    once = ScoredRows(labels=label, scores=score, counts=count, groups=group)
    expected = quality(*(np.repeat(column, count) for column in (label, score, group)))
    assert evaluate_task(BINARY, once) == pytest.approx(expected, abs=1e-12)
    assert set(expected) <= {name for name, metric in METRICS.items() if BINARY in metric.tasks}
