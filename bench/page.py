"""`python -m bench.page`: the figures of docs/figures on docs/benchmarks.md, and a picture of what was reached.

The page is written by hand but for its blocks: between `<!-- figures of NAME -->` and `<!-- end of figures -->` stands
what NAME.json holds. Which files there are says the page: one that it does not name, or names and does not find, is an
error.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.asked import asked
from bench.report import FIGURES, Report, shown
from workflows.errors import ConfigError, RanklineError

PAGE = Path("docs") / "benchmarks.md"
PICTURE = FIGURES / "reached.svg"
_BLOCK = re.compile(r"(<!-- figures of (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_PACKAGES = ("python", "tensorflow-cpu", "tensorflow", "torch", "nvtabular")


def filled(page: str, figures: Path) -> str:
    """The page with the figures of its blocks.

    Args:
        page: Markdown.
        figures: directory of JSON files as `python -m bench --json` writes them.

    Raises:
        ConfigError: a block has no file, or a file no block.
    """
    named = {found[2] for found in _BLOCK.finditer(page)}
    if differing := named ^ {path.stem for path in figures.glob("*.json")}:
        raise ConfigError(
            f"{', '.join(sorted(differing))}: on the page or in {figures}, expected in both. Write the JSON with "
            "python -m bench, or the block <!-- figures of NAME --> <!-- end of figures -->."
        )
    return _BLOCK.sub(
        lambda found: f"{found[1]}\n{_block(found[2], Report.load(figures / f'{found[2]}.json'))}\n\n{found[3]}", page
    )


def _block(name: str, report: Report) -> str:
    environment, bounds = report.environment, asked(name)
    made_with = [f"{name} {version}" for name, version in environment["versions"].items() if name in _PACKAGES]
    busy = f"; **the machine was busy** ({environment['busy']})" if "busy" in environment else ""
    about = (
        f"{environment['date']}, {environment['num_cpus']} cores of {environment['cpu']}, {', '.join(made_with)}{busy}"
    )
    ratios = [(f"`{ratio}`", shown(value), str(bounds.get(ratio, ""))) for ratio, value in report.ratios.items()]
    table = report.table()
    figures = zip(*table.values(), strict=True)
    return "\n\n".join(
        [f"`{environment['command']}`", about, _table(("ratio", "", "asked"), ratios), _table(list(table), figures)]
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ("---", *["---:"] * (len(titles) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(reports: Mapping[str, Report], path: Path) -> None:
    """What was reached of what was asked: a point for each ratio, right of the line where it is better.

    Args:
        reports: by the names of their blocks.
        path: of an SVG.
    """
    margins = {
        f"{name}: {ratio}": bound.margin(report.ratios[ratio])
        for name, report in reports.items()
        for ratio, bound in asked(name).items()
        if ratio in report.ratios and bound.value
    }
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "reached", "font.size": 9}):
        figure = Figure(figsize=(8, 0.8 + 0.2 * len(margins)), layout="constrained")
        axes = figure.subplots()
        names = list(reversed(margins))
        values = [min(max(margins[name], 0.1), 100.0) for name in names]
        colors = ["#2a8f5c" if value >= 1 else "#c2571a" for value in values]
        axes.hlines(range(len(names)), 1, values, colors=colors)
        axes.scatter(values, range(len(names)), c=colors, s=18)
        axes.axvline(1, color="#808080", linewidth=1)
        axes.set(xscale="log", yticks=range(len(names)), xticks=[0.25, 0.5, 1, 2, 4, 10, 100], xlim=(0.2, 120))
        axes.set_yticklabels(names)
        axes.set_xticklabels(["¼", "½", "as asked", "2×", "4×", "10×", "100×"])
        axes.minorticks_off()
        axes.tick_params(colors="#808080")
        axes.spines[:].set_visible(False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def main() -> None:
    """Write both."""
    try:
        page = filled(PAGE.read_text(encoding="utf-8"), FIGURES)
        draw({path.stem: Report.load(path) for path in sorted(FIGURES.glob("*.json"))}, PICTURE)
    except RanklineError as error:
        sys.exit(f"Error: {error}")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
