"""docs/benchmarks.md holds what the files of docs/figures hold."""

import json
import math
import re
from pathlib import Path

import pytest

from bench.asked import Bound, asked, figures_of
from bench.page import PAGE, draw, filled, reports_in
from bench.report import FIGURES, Report
from workflows.errors import ConfigError

ROOT = Path(__file__).parents[3]
BLOCK = "# Page\n\n<!-- figures of tune -->\nold\n<!-- end of figures -->\n\nby hand\n"


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    report = Report(
        name="tune",
        results={"tuner": {"requests_per_s": 1234.5}, "exhaustive": {"requests_per_s": 1000.0, "search_s": 60.0}},
        ratios={"tuned_over_exhaustive": 1.2345, "time_over_exhaustive": 0.5},
    ).to_dict()
    report["environment"] |= {"command": "python -m bench tune", "date": "2026-11-24"}
    (tmp_path / "tune.json").write_text(json.dumps(report), encoding="utf-8")
    return tmp_path


def test_the_page_of_the_project_is_that_of_its_figures() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert filled(page, reports_in(ROOT / FIGURES)) == page, "python -m bench.page writes it"


def test_every_ratio_that_is_asked_for_is_among_the_figures() -> None:
    """A bound under another name than the benchmark's would never be held against anything."""
    for name, report in reports_in(ROOT / FIGURES).items():
        assert asked(name).keys() <= report.ratios.keys(), name


def test_the_readme_says_how_much_faster_as_the_figures_do() -> None:
    serving, loader = (Report.load(ROOT / FIGURES / f"{name}.json").ratios for name in ("serving", "loader"))
    ratios = [serving[f"{name}_vs_merlin"] for name in ("p50", "throughput", "concurrent")] + [loader["vs_merlin"]]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"\| ([\d.]+) × (?:lower|more) \|", readme)
    assert said == [f"{float(f'{one:.2g}'):g}" for one in ratios]


def test_a_block_holds_command_machine_ratios_with_bounds_and_figures(figures: Path) -> None:
    page = filled(BLOCK, reports_in(figures))
    assert page.startswith("# Page\n\n<!-- figures of tune -->\n")
    assert page.endswith("<!-- end of figures -->\n\nby hand\n")
    assert "old" not in page
    assert "`python -m bench tune`" in page
    assert "2026-11-24" in page
    assert "| `tuned_over_exhaustive` | 1.23 | ≥ 0.95 |" in page
    assert "| `time_over_exhaustive` | 0.5 |  |" in page
    assert "| tuner | 1,234 |  |" in page
    assert filled(page, reports_in(figures)) == page


def test_a_busy_machine_is_told(figures: Path) -> None:
    report = json.loads((figures / "tune.json").read_text(encoding="utf-8"))
    report["environment"]["busy"] = "load 4.0"
    (figures / "tune.json").write_text(json.dumps(report), encoding="utf-8")
    assert "**the machine was busy** (load 4.0)" in filled(BLOCK, reports_in(figures))


@pytest.mark.parametrize("page", ["no block\n", BLOCK + BLOCK.replace("of tune", "of loader")])
def test_figures_without_a_block_and_blocks_without_figures_are_refused(page: str, figures: Path) -> None:
    with pytest.raises(ConfigError, match=r"^(tune|loader): on the page or in .*, expected in both"):
        filled(page, reports_in(figures))


def test_a_file_that_holds_no_report_is_refused(figures: Path) -> None:
    (figures / "tune.json").write_text('{"name": "tune"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tune\.json holds no report of a benchmark"):
        filled(BLOCK, reports_in(figures))


def test_the_picture_names_each_ratio_that_is_asked_for(figures: Path, tmp_path: Path) -> None:
    draw({"tune": Report.load(figures / "tune.json")}, tmp_path / "reached.svg")
    picture = (tmp_path / "reached.svg").read_text(encoding="utf-8")
    assert "tune: tuned_over_exhaustive" in picture
    assert "time_over_exhaustive" not in picture


@pytest.mark.parametrize(
    ("text", "reached", "holds", "margin"),
    [
        ("≥ 60", 30.0, False, 0.5),
        ("≥ 60", 60.0, True, 1.0),
        ("≤ 0.5", 0.25, True, 2.0),
        ("≤ 1e-6", 2e-6, False, 0.5),
        ("≤ 2", -1.0, True, math.inf),
    ],
)
def test_a_bound_says_whether_it_is_reached_and_by_how_much(
    text: str, reached: float, holds: bool, margin: float
) -> None:
    bound = Bound.parse(text)
    assert str(bound) == text.replace("1e-6", "1e-06")
    assert bound.holds(reached) is holds
    assert bound.margin(reached) == pytest.approx(margin)


def test_what_is_asked_depends_on_the_recipe() -> None:
    own, of_criteo = (
        asked(figures_of("serving", "movielens", "movielens")),
        asked(figures_of("serving", "criteo-dlrm", "movielens")),
    )
    assert own == asked(figures_of("serving"))
    assert own != of_criteo != {}
    assert asked(figures_of("serving", "movielens-torch", "movielens")) == {}
