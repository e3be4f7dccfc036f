"""Writes docs/figures into the pages of benchmarks and targets and the README: `python -m bench.harness.docs_page`.

They are written by hand except for their blocks. On the first, `<!-- ratios of NAME --> … <!-- end of figures -->`
contains the command, the machine, the ratios in NAME.json, and a link to that file; `<!-- figures of NAME -->` also
contains the table of all sides. On the second, `<!-- missed -->` and `<!-- reached -->` contain the targets. In the
README, `<!-- headline -->` compares Rankline with the limit and the main peers. Pictures are written to docs/pictures.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.harness import scaling_curve
from bench.harness.bar_charts import PICTURES, pictures
from bench.harness.report import FIGURES, Report, figures_file, shown
from bench.harness.targets import asked, limits
from rankline.workflows.core.errors import ConfigError, RanklineError

PAGE = Path("docs") / "project" / "benchmarks.md"
TARGETS = PAGE.with_name("targets.md")
README = Path("README.md")
SCALING = PICTURES / "scaling.svg"
_HEADLINE_SIDES = {
    "Rankline": "rankline",
    "a bare ASGI app": "asgi",
    "FastAPI": "fastapi",
    "merlin-systems": "merlin-systems",
}
_HEADLINE_FIGURES = (
    ("1 row, p50", "p50_ms@1", "{:.2g} ms"),
    ("1 row, 32 in flight", "rows_per_s@1x32", "{:,.0f} requests/s"),
    ("16,384 rows at once", "rows_per_s@16384", "{:,.0f} rows/s"),
)
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


def with_headline(page: str, report: Report) -> str:
    """Write the main results of `alternatives` into the README."""
    sides = {name: report.results[side] for name, side in _HEADLINE_SIDES.items()}
    limits_of = [figures for side, figures in report.results.items() if side.startswith("in process")]
    best = {"p50_ms@1": min, "rows_per_s@16384": max}
    limit = {name: choose(figures[name] for figures in limits_of) for name, choose in best.items()}
    rows = [
        (title, *(form.format(figures[name]) if name in figures else "" for figures in (limit, *sides.values())))
        for title, name, form in _HEADLINE_FIGURES
    ]
    table = _table(("", "in process, no server", *sides), rows)
    return _with_block(page, "headline", table)


def _block(name: str, report: Report, *, with_table: bool) -> str:
    environment = report.environment
    versions = environment["versions"].items()
    made_with = [f"{package} {version}" for package, version in versions if package in _PACKAGES]
    busy = f"; **the machine was busy** ({environment['busy']})" if "busy" in environment else ""
    machine = f"{environment['num_cpus']} cores of {environment['cpu']}"
    link = f"[all figures](../{figures_file(name).relative_to(PAGE.parents[1]).as_posix()})"
    about = f"{environment['date']}, {machine}, {', '.join(made_with)}{busy}; {link}"
    ratios = [(f"`{ratio}`", shown(value)) for ratio, value in report.ratios.items()]
    parts = [f"`{environment['command']}`", about, _table(("ratio", ""), ratios)]
    parts += [f"{side} was left out: {reason}" for side, reason in report.left_out.items()]
    if with_table:
        table = report.table()
        parts.append(_table(list(table), zip(*table.values(), strict=True)))
    return "\n\n".join(parts)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: slice = slice(1, None)) -> str:
    aligned = ["---:" if title in titles[numbers] else "---" for title in titles]
    lines = [titles, aligned, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_targets(page: str, reports: Mapping[str, Report]) -> str:
    """Write the targets into the page: those missed with what limits them, and those reached."""
    rows: dict[bool, list[tuple[str, ...]]] = {True: [], False: []}
    for name, report in reports.items():
        for ratio, bound in asked(name).items():
            value = report.ratios[ratio]
            row = (name, f"`{ratio}`", shown(value), str(bound))
            holds = bound.holds(value)
            rows[holds].append(row if holds else (*row, limits(name).get(ratio, "")))
    titles = ("benchmark", "ratio", "reached", "asked", "what limits it")
    for title, holds in (("missed", False), ("reached", True)):
        page = _with_block(page, title, _table(titles[:4] if holds else titles, rows[holds], slice(2, 4)))
    return page


def _with_block(page: str, name: str, block: str) -> str:
    parts = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
    return re.sub(parts, lambda found: f"{found[1]}\n{block}\n\n{found[2]}", page, flags=re.DOTALL)


def main() -> None:
    try:
        reports = reports_in(FIGURES)
        pages = {
            PAGE: filled(PAGE.read_text(encoding="utf-8"), reports),
            TARGETS: with_targets(TARGETS.read_text(encoding="utf-8"), reports),
            README: with_headline(README.read_text(encoding="utf-8"), reports["alternatives"]),
            **pictures(reports),
            **({SCALING: scaling_curve.svg(reports["scaling"].results)} if "scaling" in reports else {}),
        }
    except RanklineError as error:
        sys.exit(f"Error: {error}")
    for path, page in pages.items():
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
