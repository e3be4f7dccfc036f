"""Metrics of regression and of several classes, exact over all rows; those of two classes are in `training.metrics`."""

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

_SMALLEST = 1e-7
_NUM_BINS = 15


def rmse(labels: Values, scores: Values) -> float:
    """Root of the mean squared error, in the unit of the label.

    Args:
        labels, scores: numbers, shape (N,).
    """
    return float(np.sqrt(np.mean(np.square(_difference(labels, scores)))))


def mae(labels: Values, scores: Values) -> float:
    """Mean absolute error, in the unit of the label; arguments as of `rmse`."""
    return float(np.mean(np.abs(_difference(labels, scores))))


def r2(labels: Values, scores: Values) -> float:
    """Share of the labels' variance that the scores explain; NaN where all labels are the same. As of `rmse`."""
    spread = np.sum(np.square(labels - np.mean(labels, dtype=np.float64)))
    return float(1 - np.sum(np.square(_difference(labels, scores))) / spread) if spread > 0 else float("nan")


def class_logloss(labels: Values, scores: Values) -> float:
    """Mean cross-entropy in nats; probabilities are kept 1e-7 away from 0.

    Args:
        labels: class numbers, shape (N,).
        scores: probabilities, shape (N, C).

    Raises:
        ValueError: a label is not the number of a class.
    """
    if not np.isin(labels, np.arange(scores.shape[1])).all():
        raise ValueError(f"labels hold values other than the numbers of {scores.shape[1]} classes.")
    of_class = scores[np.arange(len(labels)), labels.astype(np.int64)].astype(np.float64)
    return float(-np.mean(np.log(np.clip(of_class, _SMALLEST, 1.0))))


def accuracy(labels: Values, scores: Values) -> float:
    """Share of rows whose likeliest class, the first of equals, is theirs; arguments as of `class_logloss`."""
    return float(np.mean(scores.argmax(axis=1) == labels))


def macro_f1(labels: Values, scores: Values) -> float:
    """Mean over the classes of F1, 2·hits / (rows of the class + rows that are said to be).

    A class that no row has and none is said to have counts for nothing. Arguments as of `class_logloss`.
    """
    num_classes, own, said = scores.shape[1], labels.astype(np.int64), scores.argmax(axis=1)
    hits = np.bincount(own[own == said], minlength=num_classes)
    named = np.bincount(own, minlength=num_classes) + np.bincount(said, minlength=num_classes)
    return float(np.mean(2 * hits[named > 0] / named[named > 0]))


def calibration_error(labels: Values, scores: Values) -> float:
    """How far the likeliest class's probability is from how often it is right, mean over the rows, in 15 bins.

    Guo et al. 2017, "On Calibration of Modern Neural Networks". Arguments as of `class_logloss`.
    """
    confidence = scores.max(axis=1).astype(np.float64)
    gap = (scores.argmax(axis=1) == labels) - confidence
    bins = np.clip(np.ceil(confidence * _NUM_BINS).astype(np.int64) - 1, 0, _NUM_BINS - 1)
    return float(np.abs(np.bincount(bins, weights=gap)).sum() / len(labels))


def _difference(labels: Values, scores: Values) -> npt.NDArray[np.float64]:
    difference: npt.NDArray[np.float64] = scores.astype(np.float64) - labels
    return difference
