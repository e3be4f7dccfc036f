"""The structure of a page: a verdict, tiles, and sections of cards. One template renders all pages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from rankline.workflows.core.formatting import quality_figure

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A key figure. `scale` draws it as a bar with marks: its share, and (share, number, text) of each mark."""

    title: str
    value: str
    unit: str = ""
    note: str = ""
    scale: tuple[float, Sequence[tuple[float, str, str]]] | None = None


@dataclass(frozen=True, kw_only=True)
class Card:
    """A chart or table with a title and a sentence. Wide cards take the whole width."""

    title: str
    content: Markup | str = ""
    note: str = ""
    is_wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Cards below a heading, and details that are folded until clicked."""

    title: str
    cards: Sequence[Card] = ()
    remarks: Sequence[str] = ()
    folded: Mapping[str, Markup] | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of a page. In `verdict`, `trust` and `steps`, text between ** is bold and between ` is code."""

    title: str
    chips: Sequence[str] = ()
    meta: Sequence[str] = ()
    verdict: str = ""
    trust: str = ""
    problems: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    steps: Sequence[str] = ()
    sections: Sequence[Section] = ()

    def html(self) -> str:
        return _template("page.html").render(page=self) + "\n"

    def markdown(self) -> str:
        """Return the verdict, key figures and next steps as Markdown."""
        tiles = [f"| {tile.title} | {tile.value} {tile.unit} | {tile.note} |" for tile in self.tiles]
        table = ["| | | |", "|---|---|---|", *tiles] if tiles else []
        steps = [f"- {step}" for step in self.steps]
        parts = [self.verdict, *self.problems, self.trust, "\n".join(table), "\n".join(steps)]
        return "\n\n".join(part for part in parts if part)


def marked(text: str) -> Markup:
    """Convert **bold** and `code` in plain text to HTML, and escape everything else."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))


def table(columns: Mapping[str, Sequence[str | Markup]], *, left: int = 1) -> Markup:
    """Build a table with headings as keys. The first `left` columns are left-aligned; narrow screens show a row as a
    list.
    """
    return Markup(_template("parts.html").module.table(columns, left))  # type: ignore[attr-defined]


def share_bar(shares: Mapping[str, float]) -> Markup:
    """Draw parts of a whole as a stacked bar, in colors by position."""
    whole = sum(shares.values()) or 1.0
    parts = (
        Markup('<i class="b{}" style="width:{:.2f}%" title="{}: {:.1%}"></i>').format(
            place, 100 * part / whole, name, part / whole
        )
        for place, (name, part) in enumerate(shares.items())
        if part > 0
    )
    return Markup('<div class="stack">{}</div>').format(Markup("").join(parts))


def bar(share: float) -> Markup:
    """Draw a fraction from 0 to 1 as a horizontal bar."""
    return Markup('<div class="stack"><i class="b0" style="width:{:.1f}%"></i></div>').format(100 * share)


def legend(names: Sequence[str]) -> Markup:
    items = (Markup('<li><i class="b{}"></i>{}</li>').format(place, name) for place, name in enumerate(names))
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def metric_tiles(metrics: Mapping[str, float]) -> list[Tile]:
    """Return tiles of the first four metrics of the validation rows, `valid_NAME`."""
    known = {name.removeprefix("valid_"): value for name, value in metrics.items() if name.startswith("valid_")}
    shown = [name for name in known if not name.endswith("_thresholds")][:4]
    return [Tile(title=name.replace("_", " "), value=quality_figure(known[name])) for name in shown]


def embedded(page: Page) -> str:
    """Return the page's heading, verdict and tiles as HTML for a notebook cell."""
    return str(_template("parts.html").module.excerpt(page))  # type: ignore[attr-defined]


@cache
def _template(name: str) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # import takes 0.1 s

    environment = Environment(
        loader=PackageLoader("rankline.workflows.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = marked
    environment.filters["zipped"] = lambda columns: zip(*columns, strict=True)
    return environment.get_template(name)
