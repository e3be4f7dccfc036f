"""How good scores are, computed exactly over a whole split (no buckets, no sampling)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from workflows.auc import exact_auc

__all__ = ["exact_auc", "gauc", "logloss"]

_SMALLEST = 1e-7


def logloss(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """Mean binary cross-entropy in nats; scores are kept 1e-7 away from 0 and 1.

    Args:
        labels: 0 or 1, shape (N,).
        scores: probabilities, shape (N,).
    """
    clipped = np.clip(scores.astype(np.float64), _SMALLEST, 1 - _SMALLEST)
    return float(-np.mean(np.where(labels > 0.5, np.log(clipped), np.log1p(-clipped))))


def gauc(labels: npt.NDArray[Any], scores: npt.NDArray[Any], groups: npt.NDArray[Any]) -> float:
    """Mean of each group's AUC, weighted by its rows; groups with one class only are left out.

    The grouped AUC of Zhou et al. 2018 ("Deep Interest Network for Click-Through Rate Prediction"), with users as
    groups: how well items are ordered *for one user*. Ties count half, as in `exact_auc`.

    Args:
        labels: 0 or 1, shape (N,).
        scores: shape (N,); only their order matters.
        groups: group of each row, shape (N,), any sortable dtype.

    Returns:
        NaN if no group has both classes.
    """
    order = np.lexsort((scores, groups))
    positive, scores, groups = labels[order] > 0.5, scores[order], groups[order]
    new_group = _starts(groups)
    group = np.cumsum(new_group) - 1
    tie = np.cumsum(new_group | _starts(scores)) - 1
    # Mid-rank of each row within its group, 1-based: the mean position of its ties.
    position = np.arange(1, len(order) + 1, dtype=np.float64)
    mid = (np.bincount(tie, weights=position) / np.maximum(np.bincount(tie), 1))[tie] if len(order) else position
    rank = mid - np.flatnonzero(new_group)[group]
    num_rows = np.bincount(group).astype(np.float64)
    num_positive = np.bincount(group, weights=positive)
    rank_sum = np.bincount(group, weights=rank * positive)
    pairs = num_positive * (num_rows - num_positive)
    both = pairs > 0
    if not both.any():
        return float("nan")
    auc = (rank_sum - num_positive * (num_positive + 1) / 2)[both] / pairs[both]
    return float(np.average(auc, weights=num_rows[both]))


def _starts(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True where a value differs from the one before it."""
    starts = np.ones(len(values), dtype=bool)
    starts[1:] = values[1:] != values[:-1]
    return starts
