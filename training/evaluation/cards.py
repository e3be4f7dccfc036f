"""Charts of model quality as cards of a page: learning curve, and per task those of scored rows.

Cards of scored rows take several models, name → rows, and draw them over each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankline.training.distributed.communicator import Array
from rankline.training.evaluation import METRICS
from rankline.training.evaluation.confidence import wilson_interval
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.page.charts import Axis, Chart, Points, percent, plain
from rankline.workflows.page.page import Card
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

_NUM_BINS = 20
_NUM_BARS = 40
_MAX_POINTS = 160  # per curve
_MAX_CLASSES = 25  # a larger confusion matrix is not readable
_NUM_CELLS = 24  # per axis of a heat map
_UNIT = Axis(low=0, high=1, ticks=(0, 0.25, 0.5, 0.75, 1), text=percent)

Rows = Mapping[str, ScoredRows]
"""Name of a model, empty for a single one, → its scored rows of one head."""


def learning_curve(title: str, curves: Mapping[str, Points], kept_epoch: int | None, chosen_by: str = "") -> Card:
    """Draw a metric over epochs, one curve per name; points are (epoch, value).

    `chosen_by` is the metric by which held-out training rows chose the epoch, if they did.
    """
    curves = {name: points for name, points in curves.items() if len(points) > 1}
    if not curves:
        return Card(title="Learning curve", note="The model trained for a single epoch, so there is no curve.")
    every = [point for points in curves.values() for point in points]
    x = Axis.linear((epoch for epoch, _ in every), "epoch")
    x = x.at(*(tick for tick in x.ticks if tick == int(tick)))
    chart = Chart(x, Axis.linear(value for _, value in every), f"{title} by epoch")
    if kept_epoch is not None and len(every) > 2:
        chart.mark(kept_epoch, f"epoch {kept_epoch} kept")
    for color, (name, points) in enumerate(curves.items()):
        chart.line(points, color)
        if len(points) <= _NUM_BINS:
            chart.dots(
                points, [f"{name}, epoch {epoch:.0f}: {quality_figure(value)}" for epoch, value in points], color
            )
        chart.label(*points[-1], name, color, is_above=color == 0)
    return Card(
        title="Learning curve",
        note=f"{title} by epoch, lower is better."
        + f" Held-out training rows choose the epoch by their {chosen_by}." * bool(chosen_by),
        content=chart.svg(),
    )


def quality_cards(head: Head, models: Rows, num_heads: int = 1) -> Iterator[Card]:
    """Draw the charts of one head. If the models have several, titles start with the label."""
    for draw in _CARDS[head.task]:
        card = draw(head, models)
        yield card if num_heads == 1 else replace(card, title=f"{head.column}: {card.title}")


def _roc(head: Head, models: Rows) -> Card:
    chart = Chart(replace(_UNIT, title="false positive rate"), _UNIT, f"ROC curve of {head.column}")
    chart.line([(0, 0), (1, 1)], 4, kind="dashed")
    for color, (name, rows) in enumerate(models.items()):
        points = _roc_points(rows)
        if len(models) == 1:
            chart.area(points, color)
            if 0 < rows.labels.sum() < len(rows.labels):
                chart.figure(f"{METRICS['auc'].measure(rows):.3f}", "area under the curve")
        chart.line(points, color)
        _name(chart, points, name, color)
    note = "True positive rate against false positive rate. The dashed line is guessing."
    return Card(title="ROC", note=note, content=chart.svg())


def _roc_points(rows: ScoredRows) -> Points:
    order = np.argsort(-rows.scores, kind="stable")
    last = np.append(np.diff(rows.scores[order]) != 0, True)  # equal scores are one step of the curve
    rates = [
        np.append(0, np.cumsum(own[order])[last] / max(own.sum(), 1)) for own in (rows.labels < 0.5, rows.labels > 0.5)
    ]
    shown = np.unique(np.linspace(0, len(rates[0]) - 1, _MAX_POINTS).astype(int))
    return list(zip(rates[0][shown].tolist(), rates[1][shown].tolist(), strict=True))


def _calibration(head: Head, models: Rows) -> Card:
    binned = {name: _binned(rows) for name, rows in models.items()}
    ends = [0.0, *(end for bins in binned.values() for x, _, (_, high) in bins for end in (x, high))]
    chart = Chart(
        Axis.linear(ends, "predicted probability", percent),
        Axis.linear(ends, text=percent),
        f"Calibration of {head.column}",
    )
    top = max(ends)
    chart.line([(0, 0), (top, top)], 4, kind="dashed")
    for color, (name, bins) in enumerate(binned.items()):
        points = [(x, y) for x, y, _ in bins]
        chart.whiskers(points, [bounds for *_, bounds in bins], color)
        chart.line(points, color)
        chart.dots(
            points,
            [f"predicted {x:.1%}, observed {y:.1%} ({low:.1%} to {high:.1%})" for x, y, (low, high) in bins],
            color,
        )
        _name(chart, points, name, color)
    note = (
        f"Observed share of positives against the predicted one, in {_NUM_BINS} bins with equal numbers of rows. "
        "Bars are 95 % intervals, the dashed line is perfect."
    )
    return Card(title="Calibration", note=note, content=chart.svg())


def _bins(rows: ScoredRows) -> list[Array]:
    """Return the positions of the rows in bins by score, with equal numbers of rows."""
    return [part for part in np.array_split(np.argsort(rows.scores, kind="stable"), _NUM_BINS) if len(part)]


def _binned(rows: ScoredRows) -> list[tuple[float, float, tuple[float, float]]]:
    """Return mean score, mean label and its 95% interval for bins with equal numbers of rows."""
    means = [(float(rows.scores[part].mean()), float(rows.labels[part].mean()), len(part)) for part in _bins(rows)]
    return [(x, y, wilson_interval(y, count)) for x, y, count in means]


def _scores(head: Head, models: Rows) -> Card:
    edges = np.linspace(0, 1, _NUM_BARS + 1)
    (rows,) = list(models.values())[-1:]
    parts = {name: rows.scores[rows.labels == label] for label, name in ((0, "0"), (1, "1"))}
    shares = {name: np.histogram(own, edges)[0] / max(len(own), 1) for name, own in parts.items()}
    top = max(float(own.max()) for own in shares.values())
    chart = Chart(replace(_UNIT, title="score"), Axis.linear([0, top * 1.3], text=percent), f"Scores of {head.column}")
    for (name, own), color, place in zip(shares.items(), (1, 0), (0.02, 0.98), strict=True):
        chart.bars(edges.tolist(), own.tolist(), color)
        chart.label(place, top * (1.2 - 0.1 * color), f"{head.column} is {name}: {len(parts[name]):,} rows", color)
    note = "Shares of the rows with each label. The further apart the two, the better."
    return Card(title="Scores by label", note=note, content=chart.svg())


def _predicted(head: Head, models: Rows) -> Card:
    (rows,) = list(models.values())[-1:]
    ends = _ends([rows.labels, rows.scores])
    counts, x, y = np.histogram2d(rows.scores, rows.labels, bins=_NUM_CELLS, range=[ends, ends])
    chart = Chart(Axis.linear(ends, f"predicted {head.column}"), Axis.linear(ends), f"Predicted and true {head.column}")
    heat = np.log1p(counts.T) / max(np.log1p(counts.max()), 1e-9)
    chart.cells(x.tolist(), y.tolist(), heat.tolist())
    chart.line([(end, end) for end in ends], 4, kind="dashed")
    note = f"True {head.column} against the predicted one; darker cells have more rows, the dashed line is perfect."
    return Card(title="Predictions", note=note, content=chart.svg())


def _errors(head: Head, models: Rows) -> Card:
    errors = {name: rows.scores - rows.labels for name, rows in models.items()}
    ends = _ends(list(errors.values()))
    edges = np.linspace(*ends, _NUM_BARS + 1)
    shares = {name: np.histogram(own, edges)[0] / len(own) for name, own in errors.items()}
    top = max(float(own.max()) for own in shares.values())
    chart = Chart(
        Axis.linear(ends, f"predicted minus true {head.column}"),
        Axis.linear([0, top * 1.1], text=percent),
        f"Errors of {head.column}",
    )
    for color, (name, own) in enumerate(shares.items()):
        chart.bars(edges.tolist(), own.tolist(), color)
        _name(chart, [(float(edges[int(own.argmax())]), float(own.max()))], name, color)
    chart.mark(0, "")
    return Card(
        title="Errors", note="Shares of rows by error; half a percent at each end is not shown.", content=chart.svg()
    )


def _errors_over_scores(head: Head, models: Rows) -> Card:
    curves = {}
    for name, rows in models.items():
        errors = rows.scores - rows.labels
        curves[name] = [(float(rows.scores[part].mean()), float(errors[part].mean())) for part in _bins(rows)]
    every = [point for points in curves.values() for point in points]
    chart = Chart(
        Axis.linear((x for x, _ in every), f"predicted {head.column}"),
        Axis.linear([0, *(y for _, y in every)]),
        f"Mean error of {head.column}",
    )
    chart.line([(x, 0.0) for x, _ in sorted(every)], 4, kind="dashed")
    for color, (name, points) in enumerate(curves.items()):
        chart.line(points, color)
        chart.dots(points, [f"predicted {plain(x)}: {plain(y)} too high" for x, y in points], color)
        _name(chart, points, name, color)
    note = f"Mean of predicted minus true {head.column}, in {_NUM_BINS} bins with equal numbers of rows."
    return Card(title="Bias", note=note, content=chart.svg())


def _confusion(head: Head, models: Rows) -> Card:
    (rows,) = list(models.values())[-1:]
    own, said = rows.labels.astype(np.int64), rows.scores.argmax(axis=1)
    totals = np.bincount(own, minlength=head.width)
    shown = np.sort(np.argsort(-totals, kind="stable")[:_MAX_CLASSES])
    counts = np.zeros((head.width, head.width))
    np.add.at(counts, (own, said), 1)
    shares = (counts / np.maximum(totals, 1)[:, None])[np.ix_(shown, shown)]
    number = len(shown)
    names = [head.classes[place] for place in shown]
    is_many = number > 8
    ticks = tuple(place + 0.5 for place in range(number))
    x = Axis(
        low=0,
        high=number,
        ticks=ticks,
        title="predicted class",
        text=lambda tick: "" if is_many else _short(names[int(tick)], 44 // number),
    )
    y = Axis(low=0, high=number, ticks=ticks, text=lambda tick: _short(names[int(tick)], 9))
    chart = Chart(x, y, f"Confusion matrix of {head.column}", height=420 if is_many else 300, left=118)
    edges = list(range(number + 1))
    chart.cells(edges, edges, shares.tolist())
    if not is_many:
        for true, predicted in np.ndindex(number, number):
            if shares[true, predicted] >= 0.005:
                share = float(shares[true, predicted])
                chart.number(predicted + 0.5, true + 0.5, f"{share:.0%}", is_light=share > 0.4)
    left_out = f" The {number} most frequent of {head.width:,} classes are shown." if number < head.width else ""
    note = f"Shares of each true class (rows) by predicted class (columns).{left_out}"
    return Card(title="Confusion matrix", note=note, content=chart.svg())


def _confidence(head: Head, models: Rows) -> Card:
    return _calibration(head, {name: _sure(rows) for name, rows in models.items()})


def _confidences(head: Head, models: Rows) -> Card:
    (rows,) = list(models.values())[-1:]
    sure, edges = _sure(rows), np.linspace(0, 1, _NUM_BARS + 1)
    parts = {"wrong": sure.scores[sure.labels < 0.5], "right": sure.scores[sure.labels > 0.5]}
    counts = {name: np.histogram(own, edges)[0] for name, own in parts.items()}
    top = max(int(own.max()) for own in counts.values())
    x = replace(_UNIT, title="probability of the predicted class")
    chart = Chart(x, Axis.linear([0, top * 1.15]), f"Confidence in {head.column}")
    for (name, own), color, place in zip(counts.items(), (1, 0), (0.02, 0.98), strict=True):
        chart.bars(edges.tolist(), own.tolist(), color)
        chart.label(place, top * 1.1, f"{name}: {len(parts[name]):,} rows", color)
    return Card(
        title="Confidence", note="Rows by the probability of the class that was predicted.", content=chart.svg()
    )


def _sure(rows: ScoredRows) -> ScoredRows:
    """Return the probability of each row's predicted class as its score, and whether it is right as its label."""
    is_right: Array = (rows.scores.argmax(axis=1) == rows.labels).astype(np.float64)
    return ScoredRows.of(is_right, rows.scores.max(axis=1))


def _ends(values: Sequence[Array]) -> tuple[float, float]:
    """Return the range of all but the most extreme percent of the values."""
    low, high = np.percentile(np.concatenate(values), [0.5, 99.5]).tolist()
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _name(chart: Chart, points: Points, name: str, color: int) -> None:
    if name:
        chart.label(*points[len(points) * (color + 1) // 3], name, color, is_above=color == 0)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: max(most - 1, 1)]}…"


_CARDS: Mapping[str, Sequence[Callable[[Head, Rows], Card]]] = {
    BINARY: (_roc, _calibration, _scores),
    REGRESSION: (_predicted, _errors, _errors_over_scores),
    MULTICLASS: (_confusion, _confidence, _confidences),
}
