"""How good scores are, over a whole split, without sampling; exactly, where a name does not say otherwise.

A metric is a function and a line in `METRICS`. Manifests, MLflow, the summary of a run and its JSON go by this table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.trainers.base import Array, Batches, Trainer
from training.world import SOLO, World
from workflows.auc import exact_auc
from workflows.errors import DataError

_SMALLEST = 1e-7
_NUM_THRESHOLDS = 200  # of Keras' AUC, unless it is told otherwise


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Something measured of the scores of a split.

    Attributes:
        measure: labels and scores, each of shape (N,), and groups where it needs them → a figure; NaN where there is
            none.
        title: in the summary of a run; empty where it leaves the metric out.
        needs_groups: it is measured only where rows have groups.
    """

    measure: Callable[..., float]
    title: str = ""
    needs_groups: bool = False


def evaluate(
    trainer: Trainer, batches: Batches, *, group_by: str | None, split: str, world: World = SOLO
) -> dict[str, float]:
    """Score a split with the averaged weights, if there are any, and measure the scores.

    Args:
        trainer: the model.
        batches: the split, or this worker's share of it.
        group_by: input whose values are the groups of `gauc`; None, or no input, for none.
        split: what the split is called, such as "validation"; for messages.
        world: the workers that score the split together; what is measured are the scores of all.

    Returns:
        See `quality`; the same for all workers, bit by bit.

    Raises:
        DataError: the split has one class only, or labels other than 0 and 1.
        FloatingPointError: a score is not finite.
    """
    scores: list[Array] = []
    labels: list[Array] = []
    groups: list[Array] = []
    with trainer.averaged():
        for inputs, label in batches:
            scores.append(trainer.score(inputs))
            labels.append(trainer.array(label))
            if group_by is not None and group_by in inputs:
                groups.append(trainer.array(inputs[group_by]))
    scored = world.all_gather(np.concatenate(scores))
    labelled = world.all_gather(np.concatenate(labels))
    grouped = world.all_gather(np.concatenate(groups)) if groups else None
    if not np.isfinite(scored).all():
        raise FloatingPointError("a score is not finite.")
    try:
        # Workers on different machines may round differently, and would not stop at the same epoch.
        figures: dict[str, float] = world.all_gather_object(quality(labelled, scored, grouped))[0]
        return figures
    except ValueError as error:
        raise DataError(
            f"the {split} data cannot be measured: {error} Prepare it again, with the labels 0 and 1 and rows of both."
        ) from None


def quality(
    labels: npt.NDArray[Any], scores: npt.NDArray[Any], groups: npt.NDArray[Any] | None = None
) -> dict[str, float]:
    """Every metric of `METRICS` by its name, without any prefix.

    Args:
        labels: 0 or 1, shape (N,).
        scores: probabilities, shape (N,).
        groups: group of each row, shape (N,); None leaves out what needs them.

    Returns:
        Finite figures; what is NaN is left out, as `gauc` where no group has both classes.

    Raises:
        ValueError: only one class is present, or a label is neither 0 nor 1.
    """
    figures = {
        name: metric.measure(labels, scores, groups) if metric.needs_groups else metric.measure(labels, scores)
        for name, metric in METRICS.items()
        if groups is not None or not metric.needs_groups
    }
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def thresholded_auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any], num_thresholds: int = _NUM_THRESHOLDS) -> float:
    """Area under a ROC curve that is drawn through a few thresholds, as `tf.keras.metrics.AUC` computes it.

    The thresholds are equally spaced, the curve between them is straight, and scores between two of them count as
    tied: where all scores lie close together it says less than `exact_auc`. It is here to be compared with.

    Args:
        labels: 0 or 1, shape (N,).
        scores: probabilities, shape (N,).
        num_thresholds: at least 2; the first lies below all scores, the last above.

    Raises:
        ValueError: only one class is present.
    """
    # float32, as in Keras: a score that lies on a threshold falls to the same side.
    gap = np.ceil(scores.astype(np.float32) * np.float32(num_thresholds - 1)).astype(np.int64) - 1
    gap, positive = np.maximum(gap, 0), labels > 0.5
    true_rate, false_rate = (_share_above(gap[rows], num_thresholds) for rows in (positive, ~positive))
    return float(np.sum(np.diff(false_rate) * (true_rate[1:] + true_rate[:-1])) / 2)


def calibration(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """Mean score by mean label: 1 where as much happens as is predicted, above 1 where too much is predicted.

    Args:
        labels: 0 or 1, shape (N,), not all 0.
        scores: probabilities, shape (N,).
    """
    return float(np.mean(scores, dtype=np.float64) / np.mean(labels, dtype=np.float64))


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


METRICS = {
    "auc": Metric(measure=exact_auc, title="AUC"),
    f"auc_{_NUM_THRESHOLDS}_thresholds": Metric(measure=thresholded_auc),
    "logloss": Metric(measure=logloss, title="logloss"),
    "calibration": Metric(measure=calibration, title="mean score / mean label"),
    "gauc": Metric(measure=gauc, title="GAUC", needs_groups=True),
}
"""Name → metric."""


def _share_above(gap: npt.NDArray[np.int64], num_thresholds: int) -> npt.NDArray[np.float64]:
    """Share of rows above each threshold, from the last one down, given the gap between two that each row is in."""
    if not len(gap):
        raise ValueError("AUC needs both classes.")
    counts = np.bincount(gap, minlength=num_thresholds - 1)
    share: npt.NDArray[np.float64] = np.append(0, np.cumsum(counts[::-1])) / len(gap)
    return share


def _starts(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True where a value differs from the one before it."""
    starts = np.ones(len(values), dtype=bool)
    starts[1:] = values[1:] != values[:-1]
    return starts
