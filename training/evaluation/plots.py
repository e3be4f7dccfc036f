"""Plots of model quality: ROC, calibration and score histogram for binary labels, and equivalents for other tasks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import METRICS, split_by_head
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

_NUM_BINS = 20
_MAX_CLASSES = 30  # a larger confusion matrix is not readable
_MAX_POINTS = 512  # per curve
_PLAIN: Any = {"text.parse_math": False}  # column names may contain "$"


def write_pictures(heads: Sequence[Head], labels: Array, scores: Array, path: Path) -> None:
    """Draw plots of model quality, one row per head, and write them to `path`."""
    with rc_context(_PLAIN):
        figure = Figure(figsize=(15, 4.4 * len(heads)))
        # Manual layout: Matplotlib's layout engines measure every text, which takes three times as long as drawing.
        bottom = 0.3 if any(head.task == MULTICLASS for head in heads) else 0.12  # class names are vertical
        top = 1 - 0.14 / len(heads)
        figure.subplots_adjust(left=0.05, right=0.99, bottom=bottom / len(heads), top=top, hspace=3 * bottom)
        lines = figure.subplots(len(heads), 3, squeeze=False)
        for line, (head, rows) in zip(lines, split_by_head(heads, ScoredRows.of(labels, scores)), strict=True):
            for axes, draw in zip(line, _PICTURES[head.task], strict=True):
                draw(axes, head, rows)
                if axes.get_legend_handles_labels()[0]:
                    # Matplotlib's default location, "best", takes more than a second to find on a busy machine.
                    axes.legend(frameon=False, loc="lower right" if draw is _draw_roc else "upper center")
        figure.suptitle(f"{', '.join(head.column for head in heads)}: {len(labels):,} validation rows")
        figure.savefig(path, dpi=110)


def _draw_roc(axes: Axes, head: Head, rows: ScoredRows) -> None:  # noqa: ARG001  (all plots have this signature)
    order = np.argsort(-rows.scores, kind="stable")
    last = np.append(np.diff(rows.scores[order]) != 0, True)  # equal scores are one step of the curve
    rates = [
        np.append(0, np.cumsum(own[order])[last] / max(own.sum(), 1)) for own in (rows.labels < 0.5, rows.labels > 0.5)
    ]
    shown = np.unique(np.linspace(0, len(rates[0]) - 1, _MAX_POINTS).astype(int))
    has_both = 0 < rows.labels.sum() < len(rows.labels)  # the first rows of a split may have one class only
    auc = f"AUC {METRICS['auc'].measure(rows):.4f}" if has_both else None
    axes.plot(rates[0][shown], rates[1][shown], label=auc)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
    axes.set(title="ROC", xlabel="share of negatives above the score", ylabel="share of positives above the score")


def _draw_calibration(axes: Axes, head: Head, rows: ScoredRows) -> None:  # noqa: ARG001
    order = np.argsort(rows.scores)
    bins = [part for part in np.array_split(order, _NUM_BINS) if len(part)]
    axes.plot([rows.scores[part].mean() for part in bins], [rows.labels[part].mean() for part in bins], "o-")
    high = max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([0, high], [0, high], color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        title=f"Calibration, {len(bins)} bins with equal numbers of rows", xlabel="mean score", ylabel="mean label"
    )


def _draw_scores(axes: Axes, head: Head, rows: ScoredRows) -> None:
    edges = np.linspace(0, 1, 51)
    for label, name in ((0, "0"), (1, "1")):
        own = rows.scores[rows.labels == label]
        shares = np.histogram(own, edges)[0] / max(len(own), 1)
        axes.stairs(shares, edges, fill=True, alpha=0.6, label=f"{head.column} is {name}: {len(own):,} rows")
    axes.set(title="Scores", xlabel="score", ylabel="share of rows with this label")


def _draw_predicted(axes: Axes, head: Head, rows: ScoredRows) -> None:
    grid = axes.hexbin(rows.labels, rows.scores, gridsize=50, bins="log", cmap="Blues", mincnt=1)
    grid.set_edgecolor("face")
    ends = [min(rows.labels.min(), rows.scores.min()), max(rows.labels.max(), rows.scores.max())]
    axes.plot(ends, ends, color="grey", linewidth=0.8, linestyle=":")
    axes.set(title=f"RMSE {METRICS['rmse'].measure(rows):.4g}", xlabel=head.column, ylabel="score")


def _draw_errors(axes: Axes, head: Head, rows: ScoredRows) -> None:
    axes.stairs(*np.histogram(rows.scores - rows.labels, 50), fill=True)
    axes.set(title="Errors", xlabel=f"score minus {head.column}", ylabel="rows")


def _draw_errors_over_scores(axes: Axes, head: Head, rows: ScoredRows) -> None:  # noqa: ARG001
    parts = [part for part in np.array_split(np.argsort(rows.scores), _NUM_BINS) if len(part)]
    centres = [rows.scores[part].mean() for part in parts]
    axes.plot(centres, [(rows.scores[part] - rows.labels[part]).mean() for part in parts], "o-")
    axes.axhline(0, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        title=f"Mean error, {len(parts)} bins with equal numbers of rows", xlabel="mean score", ylabel="mean error"
    )


def _draw_confusion(axes: Axes, head: Head, rows: ScoredRows) -> None:
    own, said = rows.labels.astype(np.int64), rows.scores.argmax(axis=1)
    shown = min(head.width, _MAX_CLASSES)
    counts = np.zeros((shown, shown))
    inside = (own < shown) & (said < shown)
    np.add.at(counts, (own[inside], said[inside]), 1)
    axes.imshow(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    names = head.classes[:shown]
    axes.set_xticks(range(shown), names, rotation=90)
    axes.set_yticks(range(shown), names)
    accuracy = METRICS["accuracy"].measure(rows)
    axes.set(title=f"Class shares, accuracy {accuracy:.4f}", xlabel="likeliest class", ylabel=head.column)


def _draw_confidence(axes: Axes, head: Head, rows: ScoredRows) -> None:
    confidence = rows.scores.max(axis=1)
    is_right = (rows.scores.argmax(axis=1) == rows.labels).astype(np.float64)
    _draw_calibration(axes, head, ScoredRows.of(is_right, confidence))
    axes.set(xlabel="mean probability of the most likely class", ylabel="share of rows predicted correctly")


def _draw_confidences(axes: Axes, head: Head, rows: ScoredRows) -> None:  # noqa: ARG001
    axes.stairs(*np.histogram(rows.scores.max(axis=1), np.linspace(0, 1, 51)), fill=True)
    axes.set(title="Confidence", xlabel="probability of the most likely class", ylabel="rows")


_PICTURES: Mapping[str, tuple[Callable[[Axes, Head, ScoredRows], None], ...]] = {
    BINARY: (_draw_roc, _draw_calibration, _draw_scores),
    REGRESSION: (_draw_predicted, _draw_errors_over_scores, _draw_errors),
    MULTICLASS: (_draw_confusion, _draw_confidence, _draw_confidences),
}
