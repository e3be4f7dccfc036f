"""Reports as HTML, as pictures, and as the container's benchmark prints them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankline.serving.deploy.bench import show
from rankline.serving.loadtest.report.html import to_html
from rankline.serving.loadtest.report.plot import write_plot
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources, StepTimes
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.serving.loadtest.summary import number
from tests.factories.reports import ALONE, report_of, result_of

VOID = {"meta"}
HOSTILE = "<script>alert('&\"')</script>"


class Page(HTMLParser):
    """Checks that elements nest, and keeps text, names of elements and values of attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def result(load: Load, **outcome: Any) -> LoadResult:
    latencies_ms = np.random.default_rng(load.batch_size).exponential(2, 900) + 0.001
    counts = {"num_unsent": 2, "errors": Counter({"UNAVAILABLE": 7})}
    return result_of(load, latencies_ms, num_slices=6, counts=counts, **{"is_stable": False, **outcome})


def breakdown() -> Breakdown:
    step = StepTimes(queue_ms=0.125, input_ms=0.25, infer_ms=0.5, output_ms=0.0625)
    return Breakdown(
        total_ms=3.5, client_ms=0.1, network_ms=-0.2, steps={"transform": step, "predict": step}, remainder_ms=0.3
    )


def report(*results: LoadResult, **changes: Any) -> BenchmarkReport:
    settings: dict[str, Any] = {
        "num_checked": 1234,
        "max_abs_error": 3e-8,
        "environment": {"cpu": "a cpu", "command": "rankline bench --concurrency 1,8"},
        "floors": (Floor(concurrency=8, requests_per_s=6123.4, p50_ms=1.25, client_cpu_ms=0.0312),),
    }
    return report_of(*results, **{**settings, **changes})


CLOSED = report(
    *(
        result(
            Load(batch_size=size, concurrency=number),
            server=ServerResources(cpu_cores=1.5, memory_bytes=123456789, num_processes=3),
            breakdown=breakdown(),
        )
        for size in (1, 64)
        for number in (1, 8)
    )
)
OPEN = report(
    *(result(Load(batch_size=1, rate_per_s=rate, arrivals="poisson")) for rate in (100.0, 200.0, 1400.0)),
    slo="p99=10ms",
    searches={1: SearchResult(rate_per_s=740.5, failed_per_s=777.5, num_probes=9)},
)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, part in value.items():
            if name != "histogram":  # is the curve
                yield from leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value


@pytest.mark.parametrize("shown", [CLOSED, OPEN])
def test_page_has_all_figures_of_a_report(shown: BenchmarkReport) -> None:
    page = Page(to_html(shown))
    text = " ".join(page.text)
    missing = [value for value in leaves(shown.to_dict()) if value is not None and number(value) not in text]
    assert missing == []
    for column in (*shown.bench[0].to_dict(), "format_version"):
        assert column == "histogram" or column in text


@pytest.mark.parametrize("shown", [CLOSED, OPEN])
def test_page_is_self_contained(shown: BenchmarkReport) -> None:
    source = to_html(shown)
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(page.names)
    assert not {name for name, _ in page.attributes if name in {"src", "href", "srcset"} or name.startswith("on")}
    assert all(value.startswith("#") for name, value in page.attributes if name == "xlink:href")  # marks of the page's
    assert not re.search(r"https?:|url\((?!#)|@import|//", source)


def test_page_escapes_all_text() -> None:
    step = StepTimes(queue_ms=1, input_ms=1, infer_ms=1, output_ms=1)
    parts = Breakdown(total_ms=6, client_ms=1, network_ms=1, steps={HOSTILE: step}, remainder_ms=0)
    bad = replace(
        result(Load(batch_size=1, rate_per_s=5.0, arrivals=HOSTILE), problem=HOSTILE, breakdown=parts),
        errors={HOSTILE: 1},
    )
    bad = replace(bad, metrics={**bad.metrics, "p999_ms": Estimate(reason=f"{HOSTILE}!")})
    source = to_html(
        report(
            bad, model_name=HOSTILE, environment={HOSTILE: HOSTILE, "command": HOSTILE}, problem=HOSTILE, slo=HOSTILE
        )
    )
    page = Page(source)
    assert "script" not in page.names
    assert "".join(page.text).count(HOSTILE) >= 9
    assert HOSTILE not in source


def test_page_of_a_report_without_latency() -> None:
    empty = result_of(Load(batch_size=1, rate_per_s=5), [], counts={"num_due": 3}, is_stable=False)
    for shown in (report(empty, environment={}, floors=()), report(environment={}, floors=())):
        page = Page(to_html(shown))
        assert "svg" not in page.names
    assert "Nothing was measured." in " ".join(page.text)


def plotted(*loads: Load) -> BenchmarkReport:
    return report_of(*(result_of(load, np.arange(1, 401) / 100) for load in loads))


BY_SIZE = plotted(*(Load(batch_size=size, concurrency=1) for size in (1, 64, 16384)))
BY_CONCURRENCY = plotted(*(Load(batch_size=size, concurrency=number) for size in (1, 64) for number in (1, 8, 32)))
BY_RATE = plotted(*(Load(batch_size=1, rate_per_s=rate, arrivals="poisson") for rate in (100.0, 800.0)))


@pytest.mark.parametrize(
    ("suffix", "header"),
    [("png", rb"\x89PNG\r\n\x1a\n"), ("pdf", rb"%PDF-1\."), ("svg", rb"<\?xml [^>]*>\s*<!DOCTYPE svg ")],
)
def test_plot_format_follows_the_suffix(tmp_path: Path, suffix: str, header: bytes) -> None:
    write_plot(BY_SIZE, tmp_path / f"bench.{suffix}")
    assert re.match(header, (tmp_path / f"bench.{suffix}").read_bytes())


@pytest.mark.parametrize(
    ("drawn", "labels"),
    [
        (BY_SIZE, ("16,384", "rows in a request")),
        (BY_CONCURRENCY, ("p99, 64 rows", "requests in flight")),
        (BY_RATE, ("800", "requests per second offered")),
    ],
)
def test_plot_axis_is_what_varies(tmp_path: Path, drawn: BenchmarkReport, labels: tuple[str, ...]) -> None:
    write_plot(drawn, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text()
    for label in labels:
        assert f">{label}" in text


@pytest.mark.parametrize("latencies_ms", [range(1, 401), ()])
def test_plot_and_page_name_what_is_not_reported(tmp_path: Path, latencies_ms: Iterable[float]) -> None:
    refused = report_of(result_of(ALONE, latencies_ms, is_stable=False, problem="not sent in time", is_refused=True))
    write_plot(refused, tmp_path / "bench.svg")
    assert ">not reported<" in (tmp_path / "bench.svg").read_text()
    assert "not sent in time" in to_html(refused)


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
