import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from rankline.serving.loadtest.report.html import to_html
from rankline.serving.loadtest.report.plot import write_plot
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Load
from tests.factories.reports import ALONE, report_of, result_of


def report(*loads: Load) -> BenchmarkReport:
    return report_of(*(result_of(load, np.arange(1, 401) / 100) for load in loads))


BY_SIZE = report(*(Load(batch_size=size, concurrency=1) for size in (1, 64, 16384)))
BY_CONCURRENCY = report(*(Load(batch_size=size, concurrency=number) for size in (1, 64) for number in (1, 8, 32)))
BY_RATE = report(*(Load(batch_size=1, rate_per_s=rate, arrivals="poisson") for rate in (100.0, 800.0)))


@pytest.mark.parametrize(
    ("suffix", "header"),
    [("png", rb"\x89PNG\r\n\x1a\n"), ("pdf", rb"%PDF-1\."), ("svg", rb"<\?xml [^>]*>\s*<!DOCTYPE svg ")],
)
def test_suffix_says_the_format(tmp_path: Path, suffix: str, header: bytes) -> None:
    write_plot(BY_SIZE, tmp_path / f"bench.{suffix}")
    assert re.match(header, (tmp_path / f"bench.{suffix}").read_bytes())


@pytest.mark.parametrize(
    ("drawn", "labels"),
    [
        (BY_SIZE, ("16,384", "p99", "rows per second", "movielens", "rows in a request")),
        (BY_CONCURRENCY, ("32", "p99, 64 rows", "requests in flight", "p99.9")),
        (BY_RATE, ("800", "p50", "requests per second offered", "rows 1, rate 100")),
    ],
)
def test_what_varies_is_the_axis(tmp_path: Path, drawn: BenchmarkReport, labels: tuple[str, ...]) -> None:
    write_plot(drawn, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text()
    for label in labels:
        assert f">{label}" in text


def test_ticks_of_rates_that_lie_close_do_not_cover_each_other(tmp_path: Path) -> None:
    rates = [700.0 + step for step in range(12)] + [1400.0]
    write_plot(report(*(Load(batch_size=1, rate_per_s=rate, arrivals="poisson") for rate in rates)), tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    assert [text.count(f">{rate}<") for rate in ("700", "701", "1,400")] == [2, 0, 2]  # latency and throughput


def test_what_has_no_latency_is_left_out(tmp_path: Path) -> None:
    empty = result_of(latencies_ms=[], counts={"num_due": 3}, is_stable=False, problem="nothing")
    both = report_of(empty, result_of(Load(batch_size=4, concurrency=1)))
    write_plot(both, tmp_path / "bench.svg")
    assert ">rows 4" in (tmp_path / "bench.svg").read_text()
    assert ">rows 1<" not in (tmp_path / "bench.svg").read_text()


@pytest.mark.parametrize("load", [Load(batch_size=1, rate_per_s=20_000.0, arrivals="poisson"), ALONE])
@pytest.mark.parametrize("latencies_ms", [range(1, 401), (), (0.0,)])
def test_figures_that_are_not_reported_have_a_word_in_their_place(
    tmp_path: Path, load: Load, latencies_ms: Iterable[float]
) -> None:
    refused = report_of(result_of(load, latencies_ms, is_stable=False, problem="not sent in time", is_refused=True))
    write_plot(refused, tmp_path / "bench.svg")
    assert ">not reported<" in (tmp_path / "bench.svg").read_text()
    assert "not sent in time" in to_html(refused)


def test_a_report_of_nothing_is_drawn(tmp_path: Path) -> None:
    write_plot(report_of(), tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_text().count(">not reported<") == 3
