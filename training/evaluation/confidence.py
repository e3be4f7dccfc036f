"""How sure a figure is: what each row adds to it, so that two models can be compared on the same rows.

A figure of N rows is, to first order, the mean of what its rows add, as it is over all rows there might be. So its
standard error is the deviation of these over √N, and that of the difference of two models is the deviation of the
differences, row by row. Of AUC that is DeLong, DeLong and Clarke-Pearson 1988, "Comparing the areas under two or more
correlated receiver operating characteristic curves".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import METRICS
from rankline.training.evaluation.scored_rows import ScoredRows

LEVEL = 1.959964
"""Standard errors from a figure to its bounds at 95 % confidence."""
_SMALLEST = 1e-7


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much another model's figure differs from a model's.

    Attributes:
        before, after: the figures.
        error: standard error of the difference.
        is_paired: both are of the same rows, compared one by one.
    """

    before: float
    after: float
    error: float
    is_paired: bool

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the change, at 95 % confidence."""
        return self.change - LEVEL * self.error, self.change + LEVEL * self.error

    @property
    def is_sure(self) -> bool:
        """Whether the bounds lie on one side of 0."""
        low, high = self.bounds
        return low > 0 or high < 0


def difference(name: str, before: tuple[Array, Array], after: tuple[Array, Array]) -> Difference:
    """Compare two models by a figure of `MEASURABLE`.

    Args:
        name: of the figure.
        before, after: labels and scores, shape (N,) each, scores of several classes (N, C). Where both have the same
            labels in the same order, they are taken for the same rows.

    Raises:
        ValueError: AUC of one class only.
    """
    figures = [METRICS[name].measure(ScoredRows.of(*rows)) for rows in (before, after)]
    added = [MEASURABLE[name](*rows) for rows in (before, after)]
    is_paired = np.array_equal(before[0], after[0], equal_nan=True)
    error = standard_error(added[1] - added[0]) if is_paired else math.hypot(*map(standard_error, added))
    return Difference(before=figures[0], after=figures[1], error=error, is_paired=is_paired)


def standard_error(added: Array) -> float:
    """Of the mean of what each row adds; NaN for fewer than two rows."""
    return float(added.std(ddof=1) / np.sqrt(len(added))) if len(added) > 1 else float("nan")


def _added_to_auc(labels: Array, scores: Array) -> Array:
    positive, num_rows = labels > 0.5, len(labels)
    ranks = _ranks(scores)
    added = np.empty(num_rows)
    for own in (positive, ~positive):
        num_others = num_rows - own.sum()
        below = (ranks[own] - _ranks(scores[own])) / num_others  # share of the other class below, ties half
        right = below if own is positive else 1 - below
        added[own] = (right - right.mean()) * num_rows / own.sum()
    return added


def _added_to_logloss(labels: Array, scores: Array) -> Array:
    if scores.ndim > 1:
        right = scores[np.arange(len(labels)), labels.astype(np.int64)]
    else:
        right = np.where(labels > 0.5, scores, 1 - scores.astype(np.float64))
    return -np.log(np.clip(right.astype(np.float64), _SMALLEST, 1.0))


def _added_to_rmse(labels: Array, scores: Array) -> Array:
    squares = np.square(scores.astype(np.float64) - labels)
    root = np.sqrt(squares.mean())
    return squares / (2 * root) if root > 0 else squares


MEASURABLE: Mapping[str, Callable[[Array, Array], Array]] = {
    "auc": _added_to_auc,
    "logloss": _added_to_logloss,
    "rmse": _added_to_rmse,
}
"""Name of a metric → what each row adds to it, shape (N,), up to a constant."""


def _ranks(values: Array) -> Array:
    """Rank values from 1, equal ones by their mean. SciPy does the same, but takes a second to import."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: Array = np.cumsum(counts) - (counts - 1) / 2
    return last[places]
