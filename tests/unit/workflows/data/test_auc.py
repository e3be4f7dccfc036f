import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.workflows.data.auc import exact_auc


def auc_by_definition(labels, scores):
    positives = [score for label, score in zip(labels, scores, strict=True) if label]
    negatives = [score for label, score in zip(labels, scores, strict=True) if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


@given(st.lists(st.tuples(st.booleans(), st.integers(-5, 5)), min_size=2, max_size=60))
def test_equals_the_share_of_pairs_in_the_right_order_with_ties_as_half(rows):
    labels, scores = zip(*rows, strict=True)
    if len(set(labels)) == 2:
        assert exact_auc(labels, scores) == pytest.approx(auc_by_definition(labels, scores), abs=1e-12)


def test_the_order_of_the_rows_does_not_matter():
    labels, scores = [1, 0, 1, 0, 1], [0.1, 0.1, 0.7, 0.9, 0.7]
    assert exact_auc(labels, scores) == exact_auc(labels[::-1], scores[::-1])


def test_float32_labels_and_infinite_scores_are_taken():
    assert exact_auc(np.array([0, 1], dtype=np.float32), [-np.inf, np.inf]) == 1.0


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "both classes, got 2 positives and 0 negatives"),
        ([], [], "both classes"),
        ([0, 1], [0.1], "same number of rows"),
        ([0, 1], [0.1, np.nan], "NaN"),
        ([0, 0.5, 1], [0.1, 0.2, 0.3], "other than 0 and 1"),
    ],
)
def test_refuses_what_has_no_auc(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        exact_auc(labels, scores)
