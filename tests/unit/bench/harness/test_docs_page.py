"""docs/project/benchmarks.md holds what the files of docs/figures hold."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.docs_page import PAGE, README, TARGETS, filled, reports_in, with_headline, with_targets
from bench.harness.report import FIGURES, Report, figures_file
from bench.harness.targets import Bound, asked, limits
from rankline.workflows.core.errors import ConfigError

ROOT = Path(__file__).parents[4]
BLOCK = "# Page\n\n<!-- ratios of tune -->\nold\n<!-- end of figures -->\n\nby hand\n"
REPORT = Report(
    name="tune",
    results={"tuner": {"requests_per_s": 1234.5}, "exhaustive": {"requests_per_s": 1000.0, "search_s": 60.0}},
    ratios={"tuned_over_exhaustive": 1.2345, "time_over_exhaustive": 0.5},
    environment={
        "command": "python -m bench tune", "date": "2026-11-24", "num_cpus": 2, "cpu": "a CPU", "busy": "load 4.0",
        "versions": {"python": "3.11"},
    },
)  # fmt: skip


def test_page_is_that_of_its_figures() -> None:
    reports = reports_in(ROOT / FIGURES)
    for path, write in ((PAGE, filled), (TARGETS, with_targets)):
        page = (ROOT / path).read_text(encoding="utf-8")
        assert write(page, reports) == page, "python -m bench.harness.docs_page writes it"


def test_documented_bounds_name_existing_ratios() -> None:
    """A bound under another name than the benchmark's would never be held against anything."""
    for name, report in reports_in(ROOT / FIGURES).items():
        assert asked(name).keys() <= report.ratios.keys(), name


def test_missed_targets_name_what_limits_them() -> None:
    missed = {
        (name, ratio)
        for name, report in reports_in(ROOT / FIGURES).items()
        for ratio, bound in asked(name).items()
        if not bound.holds(report.ratios[ratio])
    }
    assert {(name, ratio) for name, ratio in missed if ratio not in limits(name)} == set()


def test_readme_says_how_much_faster_as_the_figures_do() -> None:
    readme = (ROOT / README).read_text(encoding="utf-8")
    assert with_headline(readme, Report.load(figures_file("alternatives", ROOT))) == readme
    loaders = Report.load(figures_file("loaders", ROOT)).ratios
    faster = [loaders[f"vs_{name}"] for name in ("arrays_in_memory", "tf_data", "hugging_face_datasets")]
    faster.append(Report.load(figures_file("loader", ROOT)).ratios["vs_merlin"])
    assert re.findall(r"([\d.]+) times as fast as", readme) == [f"{float(f'{ratio:.2g}'):g}" for ratio in faster]


def test_block_holds_command_machine_ratios_with_bounds_and_the_table_if_asked_for() -> None:
    page = filled(BLOCK, {"tune": REPORT})
    assert page.startswith("# Page\n\n<!-- ratios of tune -->\n")
    assert page.endswith("<!-- end of figures -->\n\nby hand\n")
    assert "old" not in page
    for text in (
        "`python -m bench tune`",
        "2026-11-24, 2 cores of a CPU, python 3.11; **the machine was busy** (load 4.0); ",
        "[all figures](../figures/serving/tune.json)",
        "| `tuned_over_exhaustive` | 1.23 |\n| `time_over_exhaustive` | 0.5 |\n",
    ):
        assert text in page
    row = "| tuner | 1,234 |  |"
    assert row not in page
    assert row in filled(BLOCK.replace("ratios", "figures"), {"tune": REPORT})


def test_targets_are_split_into_missed_with_the_limit_and_reached() -> None:
    blocks = "<!-- missed -->\n<!-- end of missed -->\n<!-- reached -->\n<!-- end of reached -->\n"
    stored = replace(REPORT, name="etl", ratios={"etl_speedup": 1.5})
    page = with_targets(blocks, {"tune": REPORT, "etl": stored})
    missed, reached = page.split("<!-- reached -->")
    assert f"| etl | `etl_speedup` | 1.5 | ≥ 1.7 | {limits('etl')['etl_speedup']} |" in missed
    assert "| tune | `tuned_over_exhaustive` | 1.23 | ≥ 0.95 |\n" in reached


@pytest.mark.parametrize("page", ["no block\n", BLOCK + BLOCK.replace("of tune", "of loader")])
def test_figures_without_a_block_and_blocks_without_figures_are_rejected(page: str) -> None:
    with pytest.raises(ConfigError, match=r"^(tune|loader) must be both on the page and in .*, but is in only one"):
        filled(page, {"tune": REPORT})


@pytest.mark.parametrize(
    ("text", "reached", "holds"), [("≥ 60", 30.0, False), ("≥ 60", 60.0, True), ("≤ 0.5", 0.25, True)]
)
def test_bound_holds_on_one_side(text: str, reached: float, holds: bool) -> None:
    bound = Bound.parse(text)
    assert str(bound) == text
    assert bound.holds(reached) is holds
