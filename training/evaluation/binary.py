"""Metrics of binary labels, exact over all rows unless a name says otherwise."""

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.scored_rows import ScoredRows, starts
from rankline.training.evaluation.tasks import class_logloss, confidence_error
from rankline.workflows.data.auc import exact_auc

NUM_THRESHOLDS = 200
"""Default of Keras' AUC."""
_SMALLEST = 1e-7
_NUM_BINS = 15


def auc(rows: ScoredRows) -> float:
    """Return the probability that a random positive has a higher score than a random negative; see `exact_auc`."""
    return exact_auc(rows.labels, rows.scores, rows.counts)


def thresholded_auc(rows: ScoredRows, num_thresholds: int = NUM_THRESHOLDS) -> float:
    """Return the area under a ROC curve through a few thresholds, as Keras' `AUC` computes it.

    The thresholds are equally spaced, the curve is linear in between, and scores between two thresholds count as tied.
    If all scores are close together, it is less precise than `auc`. It exists for comparison with Keras.

    Args:
        rows: rows with probabilities.
        num_thresholds: at least 2; the first is below all scores, the last above.

    Raises:
        ValueError: only one class is present.
    """
    # float32, so that a score equal to a threshold is on the same side as in Keras.
    gap = np.ceil(rows.scores.astype(np.float32) * np.float32(num_thresholds - 1)).astype(np.int64) - 1
    gap, positive = np.maximum(gap, 0), rows.labels > 0.5
    true_rate, false_rate = (
        _share_above(gap[chosen], rows.counts[chosen], num_thresholds) for chosen in (positive, ~positive)
    )
    return float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1])) / 2)


def logloss(rows: ScoredRows) -> float:
    """Return the mean cross-entropy in nats, for two or more classes. Probabilities are clipped to [1e-7, 1 - 1e-7]."""
    if rows.scores.ndim > 1:
        return class_logloss(rows)
    clipped = np.clip(rows.scores.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
    return -rows.mean(np.where(rows.labels > 0.5, np.log(clipped), np.log1p(-clipped)))


def calibration(rows: ScoredRows) -> float:
    """Return the mean score divided by the mean label: 1 if calibrated, above 1 if scores are too high."""
    return rows.mean(rows.scores) / rows.mean(rows.labels)


def calibration_error(rows: ScoredRows) -> float:
    """Return the mean absolute difference between mean score and mean label, in 15 bins with equal numbers of rows.

    This is the expected calibration error with equal mass (Nguyen and O'Connor 2015, "Posterior calibration and
    exploratory analysis for natural language processing models"). Ties stay in one bin. With several classes it is the
    one of Guo et al. 2017; see `rankline.training.evaluation.tasks.confidence_error`.
    """
    if rows.scores.ndim > 1:
        return confidence_error(rows)
    order = np.argsort(rows.scores, kind="stable")
    counts, scores = rows.counts[order], rows.scores[order]
    tie = np.cumsum(starts(scores)) - 1
    in_tie = np.bincount(tie, weights=counts)
    middle = (np.cumsum(in_tie) - in_tie / 2)[tie]
    bins = (middle * _NUM_BINS / counts.sum()).astype(np.int64)
    gap = (scores.astype(np.float64) - rows.labels[order]) * counts
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / counts.sum())


def gauc(rows: ScoredRows) -> float:
    """Return the mean of each group's AUC, weighted by rows; groups with a single class are omitted.

    This is the grouped AUC of Zhou et al. 2018 ("Deep Interest Network for Click-Through Rate Prediction"). With users
    as groups, it measures how well items are ordered *for one user*. Ties count half, as in `auc`.

    Returns:
        NaN if no group has both classes.
    """
    assert rows.groups is not None
    order = np.lexsort((rows.scores, rows.groups))
    counts, positives = rows.counts[order], rows.counts[order] * (rows.labels[order] > 0.5)
    new_group = starts(rows.groups[order])
    ties = np.flatnonzero(new_group | starts(rows.scores[order]))
    group = (np.cumsum(new_group) - 1)[ties]
    in_tie, positive_in_tie = (np.add.reduceat(numbers, ties) for numbers in (counts, positives))
    num_rows, num_positive = (np.bincount(group, weights=numbers) for numbers in (in_tie, positive_in_tie))
    # Mid-rank of each tie within its group: the mean of its rows' positions, counted from 1.
    before = np.cumsum(num_rows) - num_rows
    mid_rank = np.cumsum(in_tie) - (in_tie - 1) / 2 - before[group]
    rank_sum = np.bincount(group, weights=mid_rank * positive_in_tie)
    pairs = num_positive * (num_rows - num_positive)
    both = pairs > 0
    if not both.any():
        return float("nan")
    of_group = (rank_sum - num_positive * (num_positive + 1) / 2)[both] / pairs[both]
    return float(np.average(of_group, weights=num_rows[both]))


def _share_above(gap: Array, counts: Array, num_thresholds: int) -> Array:
    """Return the fraction of rows above each threshold, in descending order. `gap` is the interval of each row."""
    if not len(gap):
        raise ValueError("AUC needs both classes.")
    in_gap = np.bincount(gap, weights=counts, minlength=num_thresholds - 1)
    share: Array = np.append(0, np.cumsum(in_gap[::-1])) / counts.sum()
    return share
