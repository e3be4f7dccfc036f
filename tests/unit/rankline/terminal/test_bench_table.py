from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rankline.serving.loadtest.compare import compare
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.server_breakdown import Breakdown, StepTimes
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.terminal.bench_table import print_comparison, print_report
from tests.factories.reports import report_of, result_of
from tests.harness.process.terminal import printed

STEP = StepTimes(queue_ms=1, input_ms=2, infer_ms=3, output_ms=4)
BREAKDOWN = Breakdown(total_ms=14, client_ms=1, network_ms=2, steps={"movielens_transform_v1": STEP}, remainder_ms=1)


def report(*results: LoadResult, **changes: Any) -> str:
    return printed(partial(print_report, report_of(*results, **changes)))


def test_figure_not_reported_is_a_dash_with_its_reason() -> None:
    text = report(*(result_of(Load(batch_size=size, concurrency=1), breakdown=BREAKDOWN) for size in (1, 64, 16384)))
    assert "one request at a time over gRPC" in text
    (line,) = (line for line in text.splitlines() if line.strip().startswith("16,384"))
    cells = line.split()
    assert [cells[5], cells[7]] == ["–", "26,214,400"]
    assert [float(cell) for cell in (*cells[1:5], cells[6])] == pytest.approx([200, 360, 380, 396, 400], rel=0.001)
    assert "p99.9 not reported: 400 samples, at least 3,688 required" in text
    assert "movielens_transform_v1, infer" in text
    assert "…" not in text


def test_below_each_figure_is_how_far_its_interval_reaches() -> None:
    known = {
        "p50_ms": Estimate(value=10.0, low=9.95, high=10.02),
        "p90_ms": Estimate(value=20.0, low=17.0, high=25.0),
        "p95_ms": Estimate(value=20.0, low=19.0),
        "p99_ms": Estimate(value=396.0),
        "rows_per_s": Estimate(value=1000.0, low=800.0, high=1100.0),
    }
    bounded = result_of()
    bounded = replace(bounded, metrics={**bounded.metrics, **known})
    text = report(bounded)
    lines = text.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.strip().startswith("1  "))
    assert lines[at + 1].split() == ["±0.5%", "±25%", "±?", "±?", "±20%"]
    for cell in ("±0.5%", "±25%"):
        end = lines[at + 1].index(cell) + len(cell)
        assert lines[at][:end].split()[-1] in ("10.00", "20.00")  # right below it
    assert "± at 95% confidence" in text


@pytest.mark.parametrize(
    ("load", "columns"),
    [
        (Load(batch_size=1, concurrency=8), ["in flight", "rows/s"]),
        (Load(batch_size=1, rate_per_s=500.0, arrivals="poisson"), ["offered/s", "answered/s"]),
    ],
)
def test_load_is_a_column(load: Load, columns: list[str]) -> None:
    text = report(result_of(load), result_of(load, is_stable=False))
    assert all(column in text for column in columns)
    assert text.count("latency did not stabilise within the time limit") == 1


def compared(*results: LoadResult, max_regression: float = 0.1) -> str:
    before = report_of(result_of(), result_of(Load(batch_size=64, concurrency=1)), environment={"cpu": "one"})
    now = report_of(*results, environment={"cpu": "two"})
    return printed(partial(print_comparison, compare(before, now, max_regression)), 90)


def test_comparison_shows_each_change_its_uncertainty_and_what_is_missing() -> None:
    text = compared(result_of(), result_of(Load(batch_size=1, rate_per_s=5.0, arrivals="poisson")))
    (line,) = (line for line in text.splitlines() if "p50_ms" in line)
    cells = line.split()
    assert [cells[0], *cells[2:5]] == ["rows_1", cells[3], cells[2], "+0.0%"]
    assert cells[5].startswith("-")
    assert cells[7].startswith("+")
    assert "rows_64 was not measured now" in text
    assert "rows_1/rate_5 (poisson) was not measured before" in text
    assert "cpu was one, is two" in text
    assert "no significant regression beyond 10%" in text


def test_regression_is_marked_with_its_certainty() -> None:
    slow = result_of(latencies_ms=range(2, 802, 2))
    sure, unsure = compared(slow, max_regression=0.3), compared(slow, max_regression=0.95)
    assert {figure: verdict_of(sure, figure) for figure in ("p50_ms", "p99_ms")} == {
        "p50_ms": "worse",
        "p99_ms": "worse",
    }
    assert "2 worse by more than 30%" in sure
    assert {figure: verdict_of(unsure, figure) for figure in ("p50_ms", "p99_ms")} == {
        "p50_ms": "worse?",  # its interval is the wider one
        "p99_ms": "worse",
    }
    assert "1 inconclusive: the interval includes the limit of 95%" in unsure
    assert "1 worse by more than 95%" in unsure


def verdict_of(text: str, figure: str) -> str:
    (line,) = (line for line in text.splitlines() if figure in line)
    return line.split()[-1]


@pytest.mark.parametrize("rate", [None, 123_456.0])
def test_no_figure_is_cut_at_80_columns_and_the_conclusion_comes_first(rate: float | None) -> None:
    loads = [Load(batch_size=n, concurrency=None if rate else 4, rate_per_s=rate, arrivals=None) for n in (1, 16_384)]
    slow = [result_of(load, [3393.456 * 1000] * 4000, breakdown=BREAKDOWN) for load in loads]
    text = report(*slow, busy="load 4.0")
    assert "…" not in text
    for found in slow:
        for metric in ("p50_ms", "p99_ms", "p999_ms", "max_ms"):
            assert f"{found.value(metric):.2f}" in text
    assert all(len(line) <= 80 for line in text.splitlines() if line.strip()[:1].isdigit() and "row" not in line)
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[1].startswith("1 row")
    assert "the machine was busy (load 4.0)" in text.partition("p90")[0]
