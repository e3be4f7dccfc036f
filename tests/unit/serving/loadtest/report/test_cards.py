"""The section of a page on speed, and the lines that the container's benchmark prints."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankline.serving.deploy.bench import show
from rankline.serving.loadtest.report.cards import speed_section
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, StepTimes
from rankline.serving.loadtest.summary import number
from rankline.workflows.page.page import Page
from tests.factories.pages import ParsedPage
from tests.factories.reports import ALONE, report_of, result_of

HOSTILE = "<script>alert('&\"')</script>"
STEP = StepTimes(queue_ms=0.125, input_ms=0.25, infer_ms=0.5, output_ms=0.0625)


def page_of(**reports: BenchmarkReport) -> ParsedPage:
    named = reports if len(reports) > 1 else {"": next(iter(reports.values()))}
    return ParsedPage(Page(title="clicks", sections=[speed_section(named)]).html())


def result(load: Load, **outcome: Any) -> LoadResult:
    latencies_ms = np.random.default_rng(load.batch_size).exponential(2, 900) + 0.001
    counts = {"num_unsent": 2, "errors": Counter({"UNAVAILABLE": 7})}
    return result_of(load, latencies_ms, num_slices=6, counts=counts, **{"is_stable": False, **outcome})


def breakdown(**changes: Any) -> Breakdown:
    usual = {
        "total_ms": 3.5,
        "client_ms": 0.1,
        "network_ms": 0.2,
        "remainder_ms": 0.3,
        "steps": {"clicks_score_v1": STEP},
    }
    return Breakdown(**{**usual, **changes})


CLOSED = report_of(
    *(
        result(Load(batch_size=size, concurrency=number), breakdown=breakdown())
        for size in (1, 64)
        for number in (1, 8)
    ),
    num_checked=1234,
    max_abs_error=3e-8,
    environment={"cpu": "a cpu", "command": "rankline bench --concurrency 1,8"},
    floors=(Floor(concurrency=8, requests_per_s=6123.4, p50_ms=1.25, client_cpu_ms=0.0312),),
)
OPEN = report_of(
    *(result(Load(batch_size=1, rate_per_s=rate, arrivals="poisson")) for rate in (100.0, 200.0, 1400.0)),
    slo="p99=10ms",
    searches={1: SearchResult(rate_per_s=740.5, failed_per_s=777.5, num_probes=9)},
)


@pytest.mark.parametrize("shown", [CLOSED, OPEN])
def test_every_load_and_metric_is_on_the_page(shown: BenchmarkReport) -> None:
    text = page_of(shown=shown).text
    for measured in shown.bench:
        for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms", "rows_per_s"):
            assert measured.value(name) is None or number(measured.value(name)) in text or shown is OPEN
    for value in shown.environment.values():
        assert value in text
    assert "42 requests failed with UNAVAILABLE" in text


def test_parts_of_a_request_have_the_shares_of_their_mean() -> None:
    parts = breakdown(client_ms=0.1, network_ms=0.2, remainder_ms=0.0)
    source = Page(title="", sections=[speed_section({"": report_of(result(ALONE, breakdown=parts))})]).html()
    shown = dict(re.findall(r'width:([\d.]+)%" title="([^:"]+):', source))
    shares = {name: float(width) for width, name in shown.items()}
    assert sum(shares.values()) == pytest.approx(100, abs=0.05)  # below 1 ms, too
    assert shares["queue"] == pytest.approx(100 * 0.125 / (0.1 + 0.2 + 0.125 + 0.75 + 0.0625), abs=0.01)


def test_network_and_remainder_are_one_part_that_is_never_negative() -> None:
    parts = breakdown(network_ms=0.0, remainder_ms=-1.3)
    text = page_of(shown=report_of(result(ALONE, breakdown=parts))).text
    assert "network and gRPC" in text
    assert "-1." not in text
    steps = {"clicks_transform_v1": STEP, "clicks_predict_v1": STEP}
    text = page_of(shown=report_of(result(ALONE, breakdown=breakdown(steps=steps)))).text
    assert re.search(r"queue\s+features\s+model", text)


def plotted(*loads: Load, factor: float = 1.0) -> BenchmarkReport:
    return report_of(*(result_of(load, factor * np.arange(1, 401) / 100) for load in loads))


BY_SIZE = plotted(*(Load(batch_size=size, concurrency=1) for size in (1, 64, 16384)))
BY_CONCURRENCY = plotted(*(Load(batch_size=size, concurrency=number) for size in (1, 64) for number in (1, 8, 32)))
BY_RATE = plotted(*(Load(batch_size=1, rate_per_s=rate, arrivals="poisson") for rate in (100.0, 800.0)))


@pytest.mark.parametrize(
    ("drawn", "labels"),
    [
        (BY_SIZE, ("16,384", "rows per request", "p99")),
        (BY_CONCURRENCY, ("64 rows", "requests in flight")),
        (BY_RATE, ("800", "requests per second offered")),
    ],
)
def test_axis_of_a_chart_is_what_varies(drawn: BenchmarkReport, labels: tuple[str, ...]) -> None:
    text = page_of(drawn=drawn).text
    for label in labels:
        assert label in text


def test_two_reports_are_drawn_over_each_other() -> None:
    text = page_of(before=BY_SIZE, after=plotted(*(one.load for one in BY_SIZE.bench), factor=0.5)).text
    assert text.count("before") == text.count("after") == 2  # latency and throughput


@pytest.mark.parametrize("latencies_ms", [range(1, 401), ()])
def test_page_says_why_latency_is_not_reported(latencies_ms: Iterable[float]) -> None:
    refused = result_of(ALONE, latencies_ms, is_stable=False, problem="not sent in time", is_refused=True)
    text = page_of(shown=report_of(refused)).text
    assert "not sent in time" in text or "Nothing was measured" in text
    assert "Nothing was measured" in page_of(shown=report_of()).text


def test_histogram_says_what_lies_beyond_it() -> None:
    shown = report_of(result_of(ALONE, [*np.linspace(1, 2, 4_000), 50.0, 60.0]))
    assert "4,002 requests; 2 above" in page_of(shown=shown).text


def test_all_text_is_escaped() -> None:
    parts = breakdown(steps={f"{HOSTILE}_transform_v1": STEP, HOSTILE: STEP})
    bad = replace(result(ALONE, problem=HOSTILE, breakdown=parts), errors={HOSTILE: 1})
    shown = report_of(bad, environment={HOSTILE: HOSTILE}, problem=HOSTILE)
    source = Page(title="", sections=[speed_section({"": shown})]).html()
    assert "script" not in ParsedPage(source).names
    assert HOSTILE not in source


@pytest.mark.parametrize(("problem", "status"), [("", 0), ("the client was the bottleneck", 1)])
def test_container_bench_prints_figures_and_fails_with_a_problem(
    problem: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result_of(Load(batch_size=1024, concurrency=1), problem=problem, is_refused=bool(problem))
    shown = report_of(measured, num_checked=50, max_abs_error=0.0)
    assert show(shown) == status
    printed = capsys.readouterr()
    row = printed.out.splitlines()[1].split()
    assert (row[0], row[7]) == ("1,024", "1,638,400")
    assert "50 scores compared" in printed.out
    assert printed.err.splitlines() == list(shown.problems)
