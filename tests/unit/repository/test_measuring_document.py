"""docs/guide/measuring.md and the reference of reports name what there is, and nothing that there is not."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import typer

from rankline.cli.main import app
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources, StepTimes
from tests.factories.reports import report_of, result_of

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = (DOCS / "guide" / "measuring.md").read_text(encoding="utf-8")
REFERENCE: str = run_path(str(DOCS / "from_program.py"))["report"]()
BY_NAME_OF = {"errors", "intervals_ms", "withheld", "environment", "steps", "searches"}  # keys are no fields


@pytest.fixture
def report() -> BenchmarkReport:
    step = StepTimes(queue_ms=1, input_ms=1, infer_ms=1, output_ms=1)
    result = result_of(
        Load(batch_size=1, rate_per_s=5.0, arrivals="poisson"),
        num_slices=4,
        counts={"errors": Counter({"UNAVAILABLE": 1})},
        server=ServerResources(cpu_cores=1.0, memory_bytes=1, num_processes=1),
        breakdown=Breakdown(total_ms=6, client_ms=1, network_ms=1, steps={"model": step}, remainder_ms=0),
    )
    return report_of(
        result,
        floors=(Floor(concurrency=1, requests_per_s=1.0, p50_ms=1.0, client_cpu_ms=1.0),),
        searches={1: SearchResult(rate_per_s=1.0, failed_per_s=2.0, num_probes=1)},
    )


def fields_of(value: Any, *, are_names: bool = False) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from () if are_names else (name,)
            yield from fields_of(part, are_names=name in BY_NAME_OF)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from fields_of(part)


def test_json_fields_are_documented(report: BenchmarkReport) -> None:
    names = set(fields_of(report.to_dict()))
    assert {"queue_ms", "num_probes", "client_busiest", "cpu_cores"} <= names  # nested ones too
    assert {name for name in names if f"`{name}`" not in REFERENCE} == set()


def test_documented_json_fields_exist(report: BenchmarkReport) -> None:
    explained = {
        name
        for line in REFERENCE.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert len(explained) > 30
    assert explained - set(fields_of(report.to_dict())) == set()


def test_documented_options_and_choices_exist() -> None:
    options = {
        option
        for parameter in typer.main.get_command(app).commands["bench"].params  # type: ignore[attr-defined]
        for option in parameter.opts
    }
    named = set(re.findall(r"(?<![-\w])--[a-z][a-z-]*", DOCUMENT))
    assert {"--against", "--max-regression", "--rate", "--slo"} <= named
    assert named - options == set()
