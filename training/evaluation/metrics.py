"""Metrics for binary, numeric and multiclass labels. They are exact over all rows unless their name says otherwise."""

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.scored_rows import ScoredRows, starts
from rankline.workflows.data.auc import exact_auc

NUM_THRESHOLDS = 200
"""Default of Keras' AUC."""
_SMALLEST = 1e-7
_NUM_BINS = 15


def rmse(rows: ScoredRows) -> float:
    """Return the root mean squared error, in the unit of the label."""
    return float(np.sqrt(rows.mean(np.square(_difference(rows)))))


def mae(rows: ScoredRows) -> float:
    """Return the mean absolute error, in the unit of the label."""
    return rows.mean(np.abs(_difference(rows)))


def r2(rows: ScoredRows) -> float:
    spread = rows.mean(np.square(rows.labels - rows.mean(rows.labels)))
    return 1 - rows.mean(np.square(_difference(rows))) / spread if spread > 0 else float("nan")


def class_logloss(rows: ScoredRows) -> float:
    """Return the mean cross-entropy in nats; probabilities are clipped to at least 1e-7."""
    labels, scores = rows.labels, rows.scores
    if not np.isin(labels, np.arange(scores.shape[1])).all():
        raise ValueError(f"labels contain values other than the indices of the {scores.shape[1]} classes.")
    of_class = scores[np.arange(len(labels)), labels.astype(np.int64)].astype(np.float64)
    return -rows.mean(np.log(np.clip(of_class, _SMALLEST, 1.0)))


def accuracy(rows: ScoredRows) -> float:
    """Return the fraction of rows whose label is the most likely class; ties go to the first class."""
    return rows.mean(rows.scores.argmax(axis=1) == rows.labels)


def macro_f1(rows: ScoredRows) -> float:
    """Return the macro-averaged F1. A class's F1 is 2 · true positives / (actual + predicted rows).

    Classes without any such rows are ignored.
    """
    own, said = rows.labels.astype(np.int64), rows.scores.argmax(axis=1)
    hits, of_class, named = (
        np.bincount(classes, weights=counts, minlength=rows.scores.shape[1])
        for classes, counts in ((own, rows.counts * (own == said)), (own, rows.counts), (said, rows.counts))
    )
    either = of_class + named
    return float(np.mean(2 * hits[either > 0] / either[either > 0]))


def confidence_error(rows: ScoredRows) -> float:
    """Return the expected calibration error of the most likely class, using 15 equal-width bins.

    Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    confidence = rows.scores.max(axis=1).astype(np.float64)
    gap = ((rows.scores.argmax(axis=1) == rows.labels) - confidence) * rows.counts
    bins = np.clip(np.ceil(confidence * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / rows.counts.sum())


def _difference(rows: ScoredRows) -> Array:
    difference: Array = rows.scores.astype(np.float64) - rows.labels
    return difference


def auc(rows: ScoredRows) -> float:
    return exact_auc(rows.labels, rows.scores, rows.counts)


def thresholded_auc(rows: ScoredRows, num_thresholds: int = NUM_THRESHOLDS) -> float:
    """Return the area under a ROC curve sampled at a few thresholds, as Keras' `AUC` computes it.

    The thresholds are equally spaced, the curve is linear in between, and scores between two thresholds count as tied.
    If all scores are close together, it is less precise than `auc`. It exists for comparison with Keras.
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
    """Return the mean absolute difference between mean score and mean label, over 15 bins with equal numbers of rows.

    This is the expected calibration error with equal mass (Nguyen and O'Connor 2015, "Posterior calibration and
    exploratory analysis for natural language processing models"). Ties stay in one bin. With several classes it is the
    one of Guo et al. 2017; see `rankline.training.evaluation.metrics.confidence_error`.
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
    """Return the mean AUC over groups, weighted by row count. Groups with a single class are omitted.

    This is the grouped AUC of Zhou et al. 2018 ("Deep Interest Network for Click-Through Rate Prediction"). With users
    as groups, it measures how well items are ordered *for one user*. Ties count half, as in `auc`. Users whose values
    are new or too rare to have an id of their own share one, and count as one group.
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
    """Return the fraction of rows above each threshold, in descending order. `gap` is each row's threshold interval."""
    if not len(gap):
        raise ValueError("AUC requires labels of both classes.")
    in_gap = np.bincount(gap, weights=counts, minlength=num_thresholds - 1)
    share: Array = np.append(0, np.cumsum(in_gap[::-1])) / counts.sum()
    return share
