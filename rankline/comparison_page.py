"""Runs side by side as one HTML page that needs nothing else."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankline.run_tables import tables_of
from serving.benchmark.markup import Markup, joined, page, tag

if TYPE_CHECKING:
    from rankline.tracking.comparison import RunComparison


def to_html(comparisons: "Sequence[RunComparison]") -> str:
    first = comparisons[0].before
    parts: list[Markup] = [tag("h1", f"{first.recipe}: runs against {first.short_id}, {first.name}")]
    for found in comparisons:
        parts.append(tag("h2", f"{found.after.short_id}, {found.after.name}"))
        parts.append(tag("p", tag("strong", found.verdict), class_="verdict"))
        for title, columns in tables_of(found):
            parts += [tag("h3", title), tag("div", _table(columns), class_="wide")]
        parts += [tag("p", remark, class_="soft") for remark in found.remarks]
    return page(f"Runs of {first.recipe}", *parts)


def _table(columns: dict[str, list[str]]) -> Markup:
    head = tag("tr", *(tag("th", name) for name in columns))
    lines = [tag("tr", *(tag("td", cell) for cell in cells)) for cells in zip(*columns.values(), strict=True)]
    return tag("table", tag("thead", head), tag("tbody", joined(*lines)))
