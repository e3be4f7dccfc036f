"""Figures of a report, and their summary in words."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources, StepTimes
from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.serving.loadtest.summary import conclusion, number, remarks, searched
from tests.factories.reports import report_of, result_of


@pytest.fixture
def result() -> LoadResult:
    step = StepTimes(queue_ms=1, input_ms=2, infer_ms=3, output_ms=4)
    return result_of(
        Load(batch_size=16, concurrency=1),
        np.random.default_rng(0).permutation(np.arange(1, 501)),
        num_slices=4,
        counts={"cpu_ns": Counter({0: 50_000_000})},
        server=ServerResources(cpu_cores=0.5, memory_bytes=1 << 20, num_processes=2),
        breakdown=Breakdown(total_ms=14, client_ms=1, network_ms=2, steps={"m": step}, remainder_ms=1),
    )


def test_figures_of_a_known_run(result: LoadResult) -> None:
    figures = [result.value(f"{name}_ms") for name in ("p50", "p90", "p95", "p99", "max")]
    assert figures == pytest.approx((250, 450, 475, 495, 500), rel=0.001)
    assert result.value("mean_ms") == pytest.approx(250.5, rel=0.001)
    assert (result.num_requests, result.duration_s) == (500, 1.0)
    assert (result.requests_per_s, result.rows_per_s) == (500, 8000)
    assert result.client_busiest == pytest.approx(0.2)
    assert result.client_cpu_ms == pytest.approx(0.4)
    median = result.metrics["p50_ms"]
    assert median.low is not None
    assert median.high is not None
    assert 200 < median.low < 250 < median.high < 300


def test_unreported_figure_has_a_reason_and_no_value(result: LoadResult) -> None:
    found = result.metrics["p999_ms"]
    assert found == Estimate(reason="500 samples, at least 3,688 required")
    entry = result.to_dict()
    assert (entry["p999_ms"], entry["withheld"]) == (None, {"p999": found.reason})
    assert "p999" not in entry["intervals_ms"]


def test_refused_measurement_states_no_latency() -> None:
    refused = result_of(latencies_ms=np.arange(1, 501), num_slices=4, problem="client", is_refused=True)
    assert {refused.metrics[name] for name in ("p50_ms", "mean_ms", "max_ms")} == {Estimate(reason="client")}
    assert refused.requests_per_s == 500
    assert report_of(refused).problems == ("rows_1: client",)


def test_csv_has_a_line_per_load_with_its_bounds(result: LoadResult) -> None:
    (line,) = csv.DictReader(io.StringIO(report_of(result).to_csv()))
    assert float(line["p50_ms"]) == result.value("p50_ms")
    assert float(line["p50_low_ms"]) == result.metrics["p50_ms"].low
    assert (line["p999_ms"], line["p999_low_ms"]) == ("", "")
    assert (line["num_errors"], line["server_cpu_cores"]) == ("0", "0.5")


def test_repeated_rates_have_separate_histograms() -> None:
    def tried(count: int, rate_per_s: float) -> LoadResult:
        load = Load(batch_size=1, rate_per_s=rate_per_s, arrivals="poisson")
        return result_of(load, np.arange(1, count))

    report = report_of(tried(9, 500.0), tried(13, 500.0), tried(17, 499.8), tried(21, 250.0))
    files = report.histograms()
    assert list(files) == [
        "rows_1_rate_500.hdr",
        "rows_1_rate_500_2.hdr",
        "rows_1_rate_500_3.hdr",
        "rows_1_rate_250.hdr",
    ]
    totals = [HdrHistogram.decode(text.splitlines()[-1].split(",")[3]).get_total_count() for text in files.values()]
    assert totals == [8, 12, 16, 20]


def test_report_round_trips(result: LoadResult, tmp_path: Path) -> None:
    short = result_of(Load(batch_size=1, rate_per_s=5), [], counts={"num_due": 3}, is_stable=False)
    report = replace(
        report_of(result, short),
        floors=(Floor(concurrency=1, requests_per_s=6000.0, p50_ms=None, client_cpu_ms=0.1),),
        searches={16: SearchResult(rate_per_s=None, failed_per_s=1.0, num_probes=2)},
        slo="p99=10ms",
        quality={"valid_auc": 0.5},
    )
    of_run = {"recipe": "movielens", "quality": {"valid_auc": 0.5, "best_auc": None, "seeds": {"0": {}}}}
    (tmp_path / "bench.json").write_text(json.dumps({**report.to_dict(), **of_run}))
    assert BenchmarkReport.read(tmp_path / "bench.json") == report
    assert short.value("mean_ms") is short.value("p50_ms") is short.lag_mean_ms is None
    assert short.requests_per_s == 0
    assert result.metrics["rows_per_s"] == Estimate(value=8000, low=8000, high=8000)  # the same in each of four slices
    assert short.to_dict()["rows_per_s_interval"] is None  # of one slice


def test_search_without_a_rate_is_a_problem() -> None:
    searches = {
        1: SearchResult(rate_per_s=100.0, failed_per_s=105.0, num_probes=2),
        16: SearchResult(rate_per_s=None, failed_per_s=1.0, num_probes=2),
    }
    assert report_of(slo="p99=10ms", searches=searches).problems == ("rows_16: no tested rate met p99=10ms",)


def test_search_reports_only_the_rate_it_found_or_its_lowest_failed_rate() -> None:
    def tried(rate_per_s: float, **changes: bool) -> LoadResult:
        load = Load(batch_size=1, rate_per_s=rate_per_s, arrivals="poisson")
        return result_of(
            load, np.arange(1, 9), is_stable=False, problem=f"at {rate_per_s:g}", is_refused=True, **changes
        )

    found = SearchResult(rate_per_s=100.0, failed_per_s=104.97, num_probes=3)
    report = report_of(tried(100.0), tried(105.0), tried(200.0), slo="p99=10ms", searches={1: found})
    assert report.problems == ("rows_1/rate_100: at 100",)
    report = replace(report, searches={1: replace(found, rate_per_s=None)})
    assert report.problems == ("rows_1/rate_105: at 105", "rows_1: no tested rate met p99=10ms")
    ended = replace(report_of(tried(200.0, is_cut_short=True), tried(400.0)), slo="p99=10ms", searches=None)
    assert ended.problems == ("rows_1/rate_200: at 200",)
    assert len(report_of(tried(105.0), tried(200.0)).problems) == 2


def test_report_of_an_earlier_release_round_trips() -> None:
    golden = Path(__file__).parents[4] / "golden/serving/bench.json"
    report = BenchmarkReport.read(golden)
    assert json.loads(report.to_json()) == json.loads(golden.read_text())
    assert report.searches == {16: SearchResult(rate_per_s=None, failed_per_s=1.0, num_probes=2)}
    assert report.bench[0].metrics["p999_ms"].reason == "500 samples, at least 3,688 required"


def summarised(count: int = 400, *, batch_size: int = 1, **outcome: Any) -> LoadResult:
    lag = LatencyHistogram()
    lag.record(2_000_000, count)
    return result_of(Load(batch_size=batch_size, concurrency=1), range(1, count + 1), counts={"lag": lag}, **outcome)


def test_remarks_count_what_went_wrong() -> None:
    bad = replace(
        summarised(4000, is_stable=False),
        errors=Counter({"UNAVAILABLE": 1234, "DEADLINE_EXCEEDED": 2}),
        num_unsent=5,
        num_repeated=7,
    )
    assert list(remarks([bad])) == [
        "1 row: latency did not stabilize within the time limit; "
        "1,234 requests failed with UNAVAILABLE; "
        "2 requests failed with DEADLINE_EXCEEDED; "
        "5 requests were not sent before the end; "
        "7 requests repeated rows sent before; "
        "requests sent 2.00 ms late on average, 2.00 ms at p99"
    ]


def test_search_result_is_summarised_for_each_batch_size() -> None:
    found = {
        1: SearchResult(rate_per_s=740.5, failed_per_s=777.5, num_probes=9),
        64: SearchResult(rate_per_s=None, failed_per_s=1.0, num_probes=8),
        128: SearchResult(rate_per_s=1e6, failed_per_s=None, num_probes=15),
        256: SearchResult(rate_per_s=100.0, failed_per_s=104.97, num_probes=4, ended="it was cut short"),
    }
    late = result_of(Load(batch_size=256, rate_per_s=105.0), problem="the client was the bottleneck")
    assert list(searched(replace(report_of(late), slo="p99=10ms", searches=found))) == [
        "p99=10ms with 1 row per request: met up to 740.5 requests/s, not at 777.5 (9 rates tested)",
        "p99=10ms with 64 rows per request: no tested rate met the target (8 rates tested)",
        "p99=10ms with 128 rows per request: met up to 1,000,000 requests/s (15 rates tested)",
        "p99=10ms with 256 rows per request: met up to 100 requests/s, not at 105, where the client, not the server, "
        "was the limit (4 rates tested); the search ended early: it was cut short",
    ]
    assert list(searched(report_of())) == []


def test_number_format() -> None:
    values = (None, True, False, 1234567, 26214400.4, 0.03125, 3e-8, "text")
    assert [number(value) for value in values] == [
        "–", "yes", "no", "1,234,567", "26,214,400", "0.03125", "3e-08", "text"
    ]  # fmt: skip


def test_conclusion_names_first_and_fastest_load_and_the_machine() -> None:
    one, many = summarised(), summarised(batch_size=64)
    said = conclusion(report_of(one, many, busy="load 4.0, 90% of the CPUs in use, 0% stolen"))
    expected = [f"p50 {number(found.value('p50_ms'))} ms, {number(found.rows_per_s)} rows/s" for found in (one, many)]
    assert said == (
        f"1 row: {expected[0]}; 64 rows: {expected[1]}; "
        "the machine was busy (load 4.0, 90% of the CPUs in use, 0% stolen)"
    )
    assert conclusion(report_of(one)) == f"1 row: {expected[0]}"
    assert conclusion(report_of()) == "nothing was measured"
