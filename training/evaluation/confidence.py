"""Confidence intervals of metrics, and paired comparison of two models on the same rows.

To first order, a metric of N rows is the mean of one contribution per row. Its standard error is therefore the standard
deviation of the contributions over √N, and the standard error of the difference of two models is computed in the same
way from the differences per row. For AUC this is the method of DeLong, DeLong and Clarke-Pearson 1988, "Comparing the
areas under two or more correlated receiver operating characteristic curves".

Rows of a group, such as a user, may depend on each other, so their contributions are added up first, and groups take
the place of rows (Cameron & Miller 2015, "A Practitioner's Guide to Cluster-Robust Inference").
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import METRICS
from rankline.training.evaluation.scored_rows import ScoredRows

LEVEL = 1.959964
"""Standard errors between a metric and its bounds at 95% confidence."""
_SMALLEST = 1e-7


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two models on one metric.

    Attributes:
        error: standard error of the difference.
        is_paired: whether both models were compared row by row on the same rows.
    """

    before: float
    after: float
    error: float
    is_paired: bool

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def bounds(self) -> tuple[float, float]:
        return self.change - LEVEL * self.error, self.change + LEVEL * self.error

    @property
    def is_sure(self) -> bool:
        low, high = self.bounds
        return low > 0 or high < 0


def difference(
    name: str,
    before: tuple[Array, Array],
    after: tuple[Array, Array],
    groups: Sequence[Array | None] = (None, None),
) -> Difference:
    """Compare two models on a metric from `MEASURABLE`.

    Args:
        before, after: labels and scores, shape (N,) each, or (N, C) for scores of several classes. If the labels are
            equal and in the same order, the rows are assumed to be the same.
        groups: groups of the rows of both, shape (N,) each, or None if the rows are independent.
    """
    figures = [METRICS[name].measure(ScoredRows.of(*rows)) for rows in (before, after)]
    added = [MEASURABLE[name](*rows) for rows in (before, after)]
    is_paired = np.array_equal(before[0], after[0], equal_nan=True)
    if is_paired:
        error = standard_error(added[1] - added[0], groups[0] if groups[1] is None else groups[1])
    else:
        error = math.hypot(*map(standard_error, added, groups))
    return Difference(before=figures[0], after=figures[1], error=error, is_paired=is_paired)


def standard_error(added: Array, groups: Array | None = None) -> float:
    """Return the standard error of a mean of contributions, one per row. It is NaN for fewer than two rows.

    The rows of a single group are taken to be independent, since nothing is known about others.
    """
    if len(added) < 2:
        return math.nan
    parts = added - added.mean()
    if groups is not None and (groups != groups[0]).any():
        parts = np.bincount(np.unique(groups, return_inverse=True)[1], parts)
    num_parts = len(parts)
    return float(np.sqrt(np.square(parts).sum() * num_parts / (num_parts - 1)) / len(added))


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share of `count` rows (Wilson 1927), which is not empty even for 0 and 1."""
    square = LEVEL**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = LEVEL / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _added_to_auc(labels: Array, scores: Array) -> Array:
    positive, num_rows = labels > 0.5, len(labels)
    ranks = _ranks(scores)
    added = np.empty(num_rows)
    for own in (positive, ~positive):
        num_others = num_rows - own.sum()
        below = (ranks[own] - _ranks(scores[own])) / num_others  # fraction of the other class below, ties half
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
"""Name of a metric → function that returns the contribution of each row, shape (N,), up to a constant."""


def _ranks(values: Array) -> Array:
    """Return 1-based ranks, with ties averaged. SciPy's equivalent takes a second to import."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: Array = np.cumsum(counts) - (counts - 1) / 2
    return last[places]
