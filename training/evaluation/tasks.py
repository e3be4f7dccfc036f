"""Metrics of regression and of several classes, exact over all rows. Metrics of binary labels are in `binary`."""

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.scored_rows import ScoredRows

_SMALLEST = 1e-7
_NUM_BINS = 15


def rmse(rows: ScoredRows) -> float:
    """Return the root mean squared error, in the unit of the label."""
    return float(np.sqrt(rows.mean(np.square(_difference(rows)))))


def mae(rows: ScoredRows) -> float:
    """Return the mean absolute error, in the unit of the label."""
    return rows.mean(np.abs(_difference(rows)))


def r2(rows: ScoredRows) -> float:
    """Return the fraction of the labels' variance that the scores explain; NaN if all labels are equal."""
    spread = rows.mean(np.square(rows.labels - rows.mean(rows.labels)))
    return 1 - rows.mean(np.square(_difference(rows))) / spread if spread > 0 else float("nan")


def class_logloss(rows: ScoredRows) -> float:
    """Return the mean cross-entropy in nats; probabilities are clipped to at least 1e-7.

    Raises:
        ValueError: a label is not the number of a class.
    """
    labels, scores = rows.labels, rows.scores
    if not np.isin(labels, np.arange(scores.shape[1])).all():
        raise ValueError(f"labels hold values other than the numbers of {scores.shape[1]} classes.")
    of_class = scores[np.arange(len(labels)), labels.astype(np.int64)].astype(np.float64)
    return -rows.mean(np.log(np.clip(of_class, _SMALLEST, 1.0)))


def accuracy(rows: ScoredRows) -> float:
    """Return the fraction of rows whose most likely class, the first in a tie, is the label."""
    return rows.mean(rows.scores.argmax(axis=1) == rows.labels)


def macro_f1(rows: ScoredRows) -> float:
    """Return the mean over the classes of F1, 2·hits / (rows of the class + rows predicted as the class).

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
    """Return the mean absolute difference between the most likely class's probability and its accuracy, in 15 bins.

    Guo et al. 2017, "On Calibration of Modern Neural Networks".
    """
    confidence = rows.scores.max(axis=1).astype(np.float64)
    gap = ((rows.scores.argmax(axis=1) == rows.labels) - confidence) * rows.counts
    bins = np.clip(np.ceil(confidence * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / rows.counts.sum())


def _difference(rows: ScoredRows) -> Array:
    difference: Array = rows.scores.astype(np.float64) - rows.labels
    return difference
