"""Metrics of scored rows, computed over a whole split without sampling, and exact unless their name says otherwise.

A metric is a function of `ScoredRows` with an entry in `METRICS`, or an entry point of the group `rankline.metrics`
that refers to a `Metric`, such as `brier = "shop.metrics:BRIER"`. `all_metrics` determines the metrics in manifests,
MLflow, and a run's summary and JSON. With several heads, metric names start with the head's column, and `loss` combines
all heads. Ranking metrics per user are in `rankline.training.evaluation.ranking`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import metrics
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.optional_packages import installed
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

ENTRY_POINTS = "rankline.metrics"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric computed from the scored rows of a split.

    Attributes:
        measure: computes the metric; NaN if it is undefined for the rows.
        title: name in the summary of a run; empty to omit the metric there.
        needs_groups: whether the metric requires rows with groups.
        tasks: tasks of heads for which the metric is defined.
    """

    measure: Callable[[ScoredRows], float]
    title: str = ""
    needs_groups: bool = False
    tasks: tuple[str, ...] = (BINARY,)


@dataclass(frozen=True, kw_only=True)
class Objective:
    name: str
    title: str
    higher_is_better: bool = False

    def is_better(self, figure: float, than: float) -> bool:
        return figure > than if self.higher_is_better else figure < than


_OBJECTIVES = {
    BINARY: Objective(name="auc", title="AUC", higher_is_better=True),
    REGRESSION: Objective(name="rmse", title="RMSE"),
    MULTICLASS: Objective(name="logloss", title="logloss"),
}


_NUM_TRIED = 100  # made-up rows
_OF_SEVERAL = Objective(name="loss", title="loss")
OBJECTIVES = (_OF_SEVERAL, *_OBJECTIVES.values())
"""All objectives; the first one found among the metrics of a model is the model's."""


def objective_of(heads: Sequence[Head]) -> Objective:
    """Return the objective for early stopping and summaries: with several heads, the weighted mean of their losses."""
    return _OBJECTIVES[heads[0].task] if len(heads) == 1 else _OF_SEVERAL


def key_figures(heads: Sequence[Head], metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the objective and the logloss under their titles, which fit the columns of MLflow's tables."""
    objective = objective_of(heads)
    titles = {objective.name: objective.title, "logloss": METRICS["logloss"].title}
    return {title: metrics[f"valid_{name}"] for name, title in titles.items() if f"valid_{name}" in metrics}


def all_metrics() -> dict[str, Metric]:
    """Return all metrics by name: first Rankline's own, then those that installed packages provide.

    Raises:
        ConfigError: a package's metric has the name of one of Rankline's.
    """
    return METRICS | _installed()


@cache
def _installed() -> dict[str, Metric]:
    found = installed(ENTRY_POINTS, Metric)
    if taken := sorted(found.keys() & METRICS):
        raise ConfigError(f"entry point {taken[0]!r} of {ENTRY_POINTS} conflicts with a built-in metric. Rename it.")
    return found


def metric_names(heads: Sequence[Head]) -> dict[str, tuple[Head, Metric]]:
    """Return a mapping from metric name to head and metric, in display order."""
    return {
        prefix + name: (head, metric)
        for prefix, head in zip(_prefixes(heads), heads, strict=True)
        for name, metric in all_metrics().items()
        if head.task in metric.tasks
    }


def evaluate_heads(heads: Sequence[Head], rows: ScoredRows) -> dict[str, float]:
    """Compute the metrics of each head over its labeled rows, keyed as in `metric_names`.

    Args:
        heads: in the order of labels and scores.
        rows: with several heads, labels of shape (N, number of heads), NaN if missing, and scores of shape (N, sum of
            the heads' widths).

    Returns:
        Finite values; with several heads also `loss`.
    """
    if len(heads) == 1:
        return evaluate_task(heads[0].task, rows)
    figures: dict[str, float] = {}
    losses = []
    for prefix, (head, own) in zip(_prefixes(heads), split_by_head(heads, rows), strict=True):
        of_head = evaluate_task(head.task, own)
        figures |= {prefix + name: figure for name, figure in of_head.items()}
        losses.append(_loss(head, of_head[_loss_name(head)]))
    return figures | {"loss": _weighted(heads, losses)}


def evaluate_task(task: str, rows: ScoredRows) -> dict[str, float]:
    """Compute all metrics of a task, keyed by name without a head prefix.

    Returns:
        Finite values; NaN values are omitted, such as `gauc` if no group has both classes.

    Raises:
        ValueError: there are no rows, or for `binary` only one class is present or a label is neither 0 nor 1.
        ConfigError: a metric of a package cannot be loaded, or fails.
    """
    if not len(rows.labels):
        raise ValueError("no rows have a label.")
    figures = {
        name: metric.measure(rows) if name in METRICS else _measured_by_package(name, metric, rows)
        for name, metric in all_metrics().items()
        if task in metric.tasks and (rows.groups is not None or not metric.needs_groups)
    }
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def try_metrics(heads: Sequence[Head]) -> None:
    """Compute all metrics of made-up rows, so that a package's metric that fails does so before training.

    Raises:
        ConfigError: a metric of a package cannot be loaded, or fails.
    """
    rng = np.random.default_rng(0)
    groups = np.arange(_NUM_TRIED) % 10
    for head in heads:
        labels = rng.permutation(np.arange(_NUM_TRIED) % max(head.width, 2)).astype(np.float32)
        scores = rng.dirichlet(np.ones(max(head.width, 2)), _NUM_TRIED).astype(np.float32)
        evaluate_task(head.task, ScoredRows.of(labels, scores if head.width > 1 else scores[:, 0], groups))


def _measured_by_package(name: str, metric: Metric, rows: ScoredRows) -> float:
    try:
        return float(metric.measure(rows))
    except Exception as error:  # arbitrary code of the package
        raise ConfigError(
            f"metric {name!r} from an installed package failed ({type(error).__name__}: {error}). Fix or remove the "
            "package; --debug shows the traceback."
        ) from error


def score_heads(heads: Sequence[Head], labels: Array, scores: Array, groups: Array | None = None) -> dict[str, float]:
    """Compute the metrics of all heads from arrays; see `evaluate_heads`."""
    return evaluate_heads(heads, ScoredRows.of(labels, scores, groups))


def quality(labels: Array, scores: Array, groups: Array | None = None, *, task: str = BINARY) -> dict[str, float]:
    """Compute the metrics of a task from arrays; see `evaluate_task`."""
    return evaluate_task(task, ScoredRows.of(labels, scores, groups))


METRICS = {
    "auc": Metric(measure=metrics.auc, title="AUC"),
    f"auc_{metrics.NUM_THRESHOLDS}_thresholds": Metric(measure=metrics.thresholded_auc),
    "logloss": Metric(measure=metrics.logloss, title="logloss", tasks=(BINARY, MULTICLASS)),
    "calibration": Metric(measure=metrics.calibration, title="mean score / mean label"),
    "gauc": Metric(measure=metrics.gauc, title="GAUC", needs_groups=True),
    "rmse": Metric(measure=metrics.rmse, title="RMSE", tasks=(REGRESSION,)),
    "mae": Metric(measure=metrics.mae, title="MAE", tasks=(REGRESSION,)),
    "r2": Metric(measure=metrics.r2, title="R²", tasks=(REGRESSION,)),
    "accuracy": Metric(measure=metrics.accuracy, title="accuracy", tasks=(MULTICLASS,)),
    "macro_f1": Metric(measure=metrics.macro_f1, title="macro F1", tasks=(MULTICLASS,)),
    "calibration_error": Metric(
        measure=metrics.calibration_error, title="calibration error", tasks=(BINARY, MULTICLASS)
    ),
}
"""Name → metric, for the metrics that come with Rankline."""


def _prefixes(heads: Sequence[Head]) -> list[str]:
    """Return each head's metric name prefix, empty for a single head. Characters that MLflow rejects are replaced."""
    if len(heads) == 1:
        return [""]
    plain = [re.sub(r"[^A-Za-z0-9_.-]", "_", head.column) for head in heads]
    unique = len(set(plain)) == len(plain)
    return [f"{name}_" if unique else f"{name}_{number}_" for number, name in enumerate(plain)]


def losses_of(heads: Sequence[Head], labels: Array, scores: Array) -> float:
    """Return the weighted mean of the heads' losses.

    Args:
        labels: shape (N,), for several heads (N, heads).
        scores: shape (N,), or (N, sum of widths).
    """
    of_heads = split_by_head(heads, ScoredRows.of(labels, scores))
    return _weighted(heads, [_loss(head, METRICS[_loss_name(head)].measure(own)) for head, own in of_heads])


def split_by_head(heads: Sequence[Head], rows: ScoredRows) -> Iterator[tuple[Head, ScoredRows]]:
    if len(heads) == 1:
        yield heads[0], rows
        return
    end = 0
    for number, head in enumerate(heads):
        begin, end = end, end + head.width
        has_label = ~np.isnan(rows.labels[:, number])
        own = rows.scores[has_label, begin:end]
        yield (
            head,
            ScoredRows(
                labels=rows.labels[has_label, number],
                scores=own[:, 0] if head.width == 1 else own,
                counts=rows.counts[has_label],
                groups=None if rows.groups is None else rows.groups[has_label],
            ),
        )


def _loss_name(head: Head) -> str:
    return "rmse" if head.task == REGRESSION else "logloss"


def _loss(head: Head, figure: float) -> float:
    return (figure / head.deviation) ** 2 if head.task == REGRESSION else figure


def _weighted(heads: Sequence[Head], losses: Sequence[float]) -> float:
    return float(np.average(losses, weights=[head.weight for head in heads]))
