"""The page of `rankline compare --html`: differences with their intervals, and both runs' curves."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rankline.serving.loadtest.report.cards import speed_section
from rankline.training.evaluation.cards import quality_cards
from rankline.training.evaluation.validation_scores import scored_alike
from rankline.workflows.core.formatting import quality_figure
from rankline.workflows.page.charts import Interval, forest
from rankline.workflows.page.page import Card, Page, Section, table

if TYPE_CHECKING:
    from rankline.runs.compare import RunComparison

_COLORS = {"better": 2, "worse": 1, "inconclusive": 4, "the same": 4}


def comparison_page(comparisons: "Sequence[RunComparison]") -> Page:
    first = comparisons[0].before
    return Page(
        title=f"{first.recipe}: {len(comparisons) + 1} runs compared",
        meta=[f"every run against {first.label}, {first.name}"],
        verdict=" ".join(f"{found.verdict}." for found in comparisons),
        sections=[section for found in comparisons for section in _sections(found)],
    )


def _sections(found: "RunComparison") -> Iterator[Section]:
    names = (found.before.label, found.after.label)
    yield Section(
        title=f"{found.after.label}, {found.after.name}, against {found.before.label}",
        cards=list(_differences(found)),
        remarks=found.remarks,
        folded={"What differs": table(found.differing_columns, left=3)},
    )
    if found.scored:
        models = [{head.column: rows for head, rows in scores.by_head()} for scores in found.scored]
        cards = [
            card
            for head in scored_alike(*(scores.heads for scores in found.scored))
            for card in quality_cards(
                head, dict(zip(names, (own[head.column] for own in models), strict=True)), len(models[0])
            )
        ]
        yield Section(title="Quality of both", cards=cards)
    if found.reports:
        yield speed_section(dict(zip(names, found.reports, strict=True)))


def _differences(found: "RunComparison") -> Iterator[Card]:
    for one in found.quality:
        low, high = one.found.bounds
        text = f"{quality_figure(one.found.before)} → {quality_figure(one.found.after)}, {one.verdict}"
        color = _COLORS[one.verdict]
        interval = Interval(name=one.title, value=one.found.change, low=low, high=high, text=text, color=color)
        rows = f"{found.num_rows:,} {'of the same' if found.is_paired else 'other'} rows"
        note = f"Change with its 95 % interval on {rows}. The dashed line is no change."
        label = f"Difference in {one.title}"
        yield Card(
            title=one.title,
            note=note,
            content=forest([interval], zero=0, label=label, text=lambda value: quality_figure(value, "+")),
        )
    intervals = [
        Interval(
            name=one.title,
            value=one.change,
            low=max(one.low, -1.0),
            high=min(one.high, 2.0),
            text=f"{one.change:+.0%}, {one.verdict}",
            color=_COLORS[one.verdict],
        )
        for one in (found.serving.differences if found.serving else ())
        if one.low is not None and one.high is not None
    ]
    if intervals:
        chart = forest(intervals, zero=0, label="Differences in speed", text=lambda share: f"{share:+.0%}")
        note = "Relative change with its 95 % interval, cut at +200 %. The dashed line is no change."
        yield Card(title="Speed", note=note, content=chart, is_wide=True)
