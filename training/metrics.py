"""How good scores are, over a whole split, without sampling; exactly, where a name does not say otherwise.

A metric is a function and a line in `METRICS`. Manifests, MLflow, the summary of a run and its JSON go by this table.
Of several heads, each metric has the head's column in front of its name, and there is a `loss` of them all.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training import task_metrics
from training.trainers.base import Array, Batches, Trainer
from training.world import SOLO, World
from workflows.auc import exact_auc
from workflows.errors import DataError
from workflows.heads import BINARY, MULTICLASS, REGRESSION, Head
from workflows.labels import expected_labels

_SMALLEST = 1e-7
_NUM_THRESHOLDS = 200  # of Keras' AUC, unless it is told otherwise


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Something measured of the scores of a split.

    Attributes:
        measure: labels, shape (N,), scores, shape (N,) or (N, C) of C classes, and groups where it needs them → a
            figure; NaN where there is none.
        title: in the summary of a run; empty where it leaves the metric out.
        needs_groups: it is measured only where rows have groups.
        tasks: of heads that it is measured of.
    """

    measure: Callable[..., float]
    title: str = ""
    needs_groups: bool = False
    tasks: tuple[str, ...] = (BINARY,)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The metric by which one model is better than another.

    Attributes:
        name: a key of `METRICS`, or "loss".
        title: for people.
        is_rising: more is better.
    """

    name: str
    title: str
    is_rising: bool = False

    def is_better(self, figure: float, than: float) -> bool:
        """Whether one figure is better than another."""
        return figure > than if self.is_rising else figure < than


_OBJECTIVES = {
    BINARY: Objective(name="auc", title="AUC", is_rising=True),
    REGRESSION: Objective(name="rmse", title="RMSE"),
    MULTICLASS: Objective(name="logloss", title="logloss"),
}


_OF_SEVERAL = Objective(name="loss", title="loss")
OBJECTIVES = (_OF_SEVERAL, *_OBJECTIVES.values())
"""All of them; the figures of a model have the first one that is there as theirs."""


def objective_of(heads: Sequence[Head]) -> Objective:
    """What early stopping and summaries go by: of several heads, the weighted mean of their losses."""
    return _OBJECTIVES[heads[0].task] if len(heads) == 1 else _OF_SEVERAL


def metric_names(heads: Sequence[Head]) -> dict[str, tuple[Head, Metric]]:
    """Name of a figure → its head and metric, in the order in which they are shown."""
    prefixes = _prefixes([head.column for head in heads])
    return {
        prefix + name: (head, metric)
        for prefix, head in zip(prefixes, heads, strict=True)
        for name, metric in METRICS.items()
        if head.task in metric.tasks
    }


def evaluate(
    trainer: Trainer, batches: Batches, heads: Sequence[Head], *, group_by: str | None, split: str, world: World = SOLO
) -> dict[str, float]:
    """Score a split with the averaged weights, if there are any, and measure the scores.

    Args:
        trainer: the model.
        batches: the split, or this worker's share of it.
        heads: what its labels are.
        group_by: input whose values are the groups of `gauc`; None, or no input, for none.
        split: what the split is called, such as "validation"; for messages.
        world: the workers that score the split together; what is measured are the scores of all.

    Returns:
        See `qualities`; the same for all workers, bit by bit.

    Raises:
        DataError: the labels do not fit the heads, or the split has one class only.
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
        figures: dict[str, float] = world.all_gather_object(qualities(heads, labelled, scored, grouped))[0]
        return figures
    except ValueError as error:
        expected = " and ".join(dict.fromkeys(map(expected_labels, heads))).replace("0 or 1", "0 and 1")
        raise DataError(
            f"the {split} data cannot be measured: {error} Prepare it again, with the labels {expected} and rows of "
            f"{'both' if len(heads) == 1 else 'all'}."
        ) from None


def qualities(heads: Sequence[Head], labels: Array, scores: Array, groups: Array | None = None) -> dict[str, float]:
    """The metrics of each head over the rows that have its label, under the names of `metric_names`.

    Args:
        heads: in the order of labels and scores.
        labels: shape (N,), or (N, number of heads), NaN where there is none.
        scores: shape (N,), or (N, sum of the heads' widths).
        groups: as of `quality`.

    Returns:
        Finite figures, see `quality`; of several heads also `loss`.

    Raises:
        ValueError: see `quality`.
    """
    if len(heads) == 1:
        return quality(labels, scores, groups, task=heads[0].task)
    figures: dict[str, float] = {}
    losses = []
    prefixes = _prefixes([head.column for head in heads])
    for prefix, (head, has_label, own_labels, own) in zip(prefixes, _by_head(heads, labels, scores), strict=True):
        of_head = quality(own_labels, own, None if groups is None else groups[has_label], task=head.task)
        figures |= {prefix + name: figure for name, figure in of_head.items()}
        losses.append(_loss(head, of_head))
    return figures | {"loss": _weighted(heads, losses)}


def quality(
    labels: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    groups: npt.NDArray[Any] | None = None,
    *,
    task: str = BINARY,
) -> dict[str, float]:
    """Every metric of `METRICS` for a task by its name, without any prefix.

    Args:
        labels: shape (N,), those of the task.
        scores: probabilities or numbers, shape (N,), or probabilities of C classes, shape (N, C).
        groups: group of each row, shape (N,); None leaves out what needs them.
        task: of `workflows.heads.TASKS`.

    Returns:
        Finite figures; what is NaN is left out, as `gauc` where no group has both classes.

    Raises:
        ValueError: of `binary`, only one class is present, or a label is neither 0 nor 1; or there is no row.
    """
    if not len(labels):
        raise ValueError("no row has a label.")
    figures = {
        name: metric.measure(labels, scores, groups) if metric.needs_groups else metric.measure(labels, scores)
        for name, metric in METRICS.items()
        if task in metric.tasks and (groups is not None or not metric.needs_groups)
    }
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def thresholded_auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any], num_thresholds: int = _NUM_THRESHOLDS) -> float:
    """Area under a ROC curve that is drawn through a few thresholds, as Keras' `AUC` computes it.

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
    """Mean cross-entropy in nats; scores are kept 1e-7 away from 0 and 1.

    Args:
        labels: 0 or 1, or class numbers, shape (N,).
        scores: probabilities, shape (N,), or of each class, shape (N, C).
    """
    if scores.ndim > 1:
        return task_metrics.class_logloss(labels, scores)
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
    "logloss": Metric(measure=logloss, title="logloss", tasks=(BINARY, MULTICLASS)),
    "calibration": Metric(measure=calibration, title="mean score / mean label"),
    "gauc": Metric(measure=gauc, title="GAUC", needs_groups=True),
    "rmse": Metric(measure=task_metrics.rmse, title="RMSE", tasks=(REGRESSION,)),
    "mae": Metric(measure=task_metrics.mae, title="MAE", tasks=(REGRESSION,)),
    "r2": Metric(measure=task_metrics.r2, title="R²", tasks=(REGRESSION,)),
    "accuracy": Metric(measure=task_metrics.accuracy, title="accuracy", tasks=(MULTICLASS,)),
    "macro_f1": Metric(measure=task_metrics.macro_f1, title="macro F1", tasks=(MULTICLASS,)),
    "calibration_error": Metric(measure=task_metrics.calibration_error, title="calibration error", tasks=(MULTICLASS,)),
}
"""Name → metric."""


def _prefixes(columns: Sequence[str]) -> list[str]:
    """What is in front of the names of each head's figures: nothing of a single one; MLflow takes few characters."""
    if len(columns) == 1:
        return [""]
    plain = [re.sub(r"[^A-Za-z0-9_.-]", "_", column) for column in columns]
    unique = len(set(plain)) == len(plain)
    return [f"{name}_" if unique else f"{name}_{number}_" for number, name in enumerate(plain)]


def losses_of(heads: Sequence[Head], labels: Array, scores: Array) -> float:
    """The mean of the heads' losses by their weights, of labels (N, heads) and scores (N, sum of widths)."""
    losses = []
    for head, _, own_labels, own in _by_head(heads, labels, scores):
        name = _loss_name(head)
        losses.append(_loss(head, {name: METRICS[name].measure(own_labels, own)}))
    return _weighted(heads, losses)


def _by_head(heads: Sequence[Head], labels: Array, scores: Array) -> Iterator[tuple[Head, Array, Array, Array]]:
    """Each head, which rows have its label, and of these labels (n,) and scores, (n,) or (n, width)."""
    end = 0
    for number, head in enumerate(heads):
        begin, end = end, end + head.width
        has_label = ~np.isnan(labels[:, number])
        own = scores[has_label, begin:end]
        yield head, has_label, labels[has_label, number], own[:, 0] if head.width == 1 else own


def _loss_name(head: Head) -> str:
    return "rmse" if head.task == REGRESSION else "logloss"


def _loss(head: Head, figures: Mapping[str, float]) -> float:
    """What training makes small: of regression, of the standardised label."""
    figure = figures[_loss_name(head)]
    return (figure / head.deviation) ** 2 if head.task == REGRESSION else figure


def _weighted(heads: Sequence[Head], losses: Sequence[float]) -> float:
    return float(np.average(losses, weights=[head.weight for head in heads]))


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
