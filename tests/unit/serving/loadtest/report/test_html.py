import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from rankline.serving.loadtest.report.html import to_html
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.serving.loadtest.server_breakdown import Breakdown, ServerResources, StepTimes
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.serving.loadtest.summary import conclusion, number, remarks
from tests.factories.reports import report_of, result_of

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
def test_all_figures_of_a_report_are_on_the_page(shown: BenchmarkReport) -> None:
    page = Page(to_html(shown))
    text = " ".join(page.text)
    missing = [value for value in leaves(shown.to_dict()) if value is not None and number(value) not in text]
    assert missing == []
    for column in (*shown.bench[0].to_dict(), "format_version"):
        assert column == "histogram" or column in text


@pytest.mark.parametrize("shown", [CLOSED, OPEN])
def test_the_page_needs_nothing_from_elsewhere(shown: BenchmarkReport) -> None:
    source = to_html(shown)
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(page.names)
    assert not {name for name, _ in page.attributes if name in {"src", "href", "srcset"} or name.startswith("on")}
    assert all(value.startswith("#") for name, value in page.attributes if name == "xlink:href")  # marks of the page's
    assert not re.search(r"https?:|url\((?!#)|@import|//", source)
    assert page.names.count("svg") == 3
    assert "stroke: currentColor" in source
    assert "#000000" not in source
    assert "prefers-color-scheme:dark" in source
    assert ("name", "viewport") in page.attributes


def test_a_bar_has_a_part_for_each_share() -> None:
    page = Page(to_html(CLOSED))
    grown = [value for name, value in page.attributes if name == "style" and value.startswith("flex-grow")]
    assert "flex-grow:0.1000" in grown  # the client
    assert len(grown) == 4 * 5  # a network of less than nothing has no part of the bar


def test_no_text_of_a_report_becomes_markup() -> None:
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


def test_a_report_without_a_latency_is_a_page_too() -> None:
    empty = result_of(Load(batch_size=1, rate_per_s=5), [], counts={"num_due": 3}, is_stable=False)
    for shown in (report(empty, environment={}, floors=()), report(environment={}, floors=())):
        page = Page(to_html(shown))
        assert "svg" not in page.names
    assert "Nothing was measured." in " ".join(page.text)


def test_the_page_begins_with_the_conclusion_the_model_and_its_quality() -> None:
    shown = replace(CLOSED, version=7, quality={"valid_auc": 0.8125, "served_auc": 0.8126}, busy="load 4.0")
    page = Page(to_html(shown))
    begin = "".join(page.text).partition("Figures")[0]
    assert conclusion(shown) in begin
    assert "the machine was busy (load 4.0)" in begin
    assert f"{shown.model_name}, version 7, valid_auc 0.8125, served_auc 0.8126" in begin
    assert "see what went wrong" in "".join(Page(to_html(replace(shown, problem="stopped by Ctrl-C"))).text)


def test_remarks_are_folded_away() -> None:
    source = to_html(CLOSED)
    remarked = list(remarks(CLOSED.bench))
    assert len(remarked) > 1
    folded = source.partition(f"<summary>{len(remarked)} remarks")[2].partition("</details>")[0]
    assert folded.count("<li>") == len(remarked)
