"""Writes docs/figures into docs/project/benchmarks.md and draws reached targets: `python -m bench.harness.docs_page`.

The page is written by hand except for its blocks. `<!-- ratios of NAME --> … <!-- end of figures -->` contains the
command, the machine, the ratios in NAME.json, and a link to that file; `<!-- figures of NAME -->` also contains the
table of all sides.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.harness.report import FIGURES, Report, asked, figures_file, shown
from rankline.workflows.core.errors import ConfigError, RanklineError

PAGE = Path("docs") / "project" / "benchmarks.md"
PICTURE = FIGURES / "reached.svg"
_BLOCK = re.compile(r"(<!-- (figures|ratios) of (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_PACKAGES = ("python", "tensorflow-cpu", "tensorflow", "torch", "nvtabular")


def reports_in(figures: Path) -> dict[str, Report]:
    return {path.stem: Report.load(path) for path in sorted(figures.rglob("*.json"), key=lambda path: path.name)}


def filled(page: str, reports: Mapping[str, Report]) -> str:
    if differing := {found[3] for found in _BLOCK.finditer(page)} ^ reports.keys():
        raise ConfigError(
            f"{', '.join(sorted(differing))} must be both on the page and in {FIGURES}, but is in only one of them. "
            "Write the JSON with python -m bench, or add the block <!-- ratios of NAME --> <!-- end of figures -->."
        )

    def fill(found: re.Match[str]) -> str:
        block = _block(found[3], reports[found[3]], with_table=found[2] == "figures")
        return f"{found[1]}\n{block}\n\n{found[4]}"

    return _BLOCK.sub(fill, page)


def _block(name: str, report: Report, *, with_table: bool) -> str:
    environment, bounds = report.environment, asked(name)
    versions = environment["versions"].items()
    made_with = [f"{package} {version}" for package, version in versions if package in _PACKAGES]
    busy = f"; **the machine was busy** ({environment['busy']})" if "busy" in environment else ""
    machine = f"{environment['num_cpus']} cores of {environment['cpu']}"
    link = f"[all figures](../{figures_file(name).relative_to(PAGE.parents[1]).as_posix()})"
    about = f"{environment['date']}, {machine}, {', '.join(made_with)}{busy}; {link}"
    ratios = [(f"`{ratio}`", shown(value), str(bounds.get(ratio, ""))) for ratio, value in report.ratios.items()]
    parts = [f"`{environment['command']}`", about, _table(("ratio", "", "asked"), ratios)]
    parts += [f"{side} was left out: {reason}" for side, reason in report.left_out.items()]
    if with_table:
        table = report.table()
        parts.append(_table(list(table), zip(*table.values(), strict=True)))
    return "\n\n".join(parts)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ("---", *["---:"] * (len(titles) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(reports: Mapping[str, Report], path: Path) -> None:
    """Plot each ratio relative to its target; points on the right of the line are better than the target."""
    reached = {
        f"{name}: {ratio}": (bound, report.ratios[ratio])
        for name, report in reversed([*reports.items()])
        for ratio, bound in reversed(asked(name).items())
        if ratio in report.ratios and bound.value
    }
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "reached", "font.size": 9}):
        figure = Figure(figsize=(5, 0.8 + 0.2 * len(reached)), layout="constrained")
        axes = figure.subplots()
        rows = range(len(reached))
        values = [min(max(bound.margin(value), 0.1), 100.0) for bound, value in reached.values()]
        colors = ["#2a8f5c" if bound.holds(value) else "#c2571a" for bound, value in reached.values()]
        axes.hlines(rows, 1, values, colors=colors)
        axes.scatter(values, rows, c=colors, s=18)
        axes.axvline(1, color="#808080", linewidth=1)
        axes.set(xscale="log", yticks=rows, xticks=[0.25, 1, 4, 20, 100], xlim=(0.2, 120))
        axes.set_yticklabels(reached)
        axes.set_xticklabels(["¼", "asked", "4×", "20×", "100×"])
        axes.xaxis.tick_top()
        axes.margins(y=0.01)
        axes.minorticks_off()
        axes.tick_params(colors="#808080")
        axes.spines[:].set_visible(False)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def main() -> None:
    try:
        reports = reports_in(FIGURES)
        page = filled(PAGE.read_text(encoding="utf-8"), reports)
    except RanklineError as error:
        sys.exit(f"Error: {error}")
    PAGE.write_text(page, encoding="utf-8")
    draw(reports, PICTURE)


if __name__ == "__main__":
    main()
