from collections import Counter
from dataclasses import replace
from typing import Any

from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, SearchResult
from rankline.serving.loadtest.stats.counters import LatencyHistogram
from rankline.serving.loadtest.summary import checked, conclusion, number, remarks, searched
from tests.factories.reports import report_of, result_of


def result(count: int = 400, *, batch_size: int = 1, **outcome: Any) -> LoadResult:
    lag = LatencyHistogram()
    lag.record(2_000_000, count)
    return result_of(Load(batch_size=batch_size, concurrency=1), range(1, count + 1), counts={"lag": lag}, **outcome)


def test_what_is_not_reported_is_said_once_for_all_loads() -> None:
    few, fewer, many = result(180), result(160, batch_size=4), result(400, batch_size=16)
    assert [remark for remark in remarks([few, fewer, many]) if "sent" not in remark] == [
        "p99 not reported for rows 1; rows 4: 160 to 180 samples, at least 368 required",
        "p99.9 not reported: 160 to 400 samples, at least 3,688 required",
    ]
    assert next(remarks([few, many])) == "p99 not reported for rows 1: 180 samples, at least 368 required"


def test_what_the_problem_says_is_no_remark_too() -> None:
    refused = result(is_stable=False, problem="the client was the bottleneck", is_refused=True)
    assert {found.reason for found in refused.metrics.values()} - {""} == {"the client was the bottleneck"}
    assert [remark for remark in remarks([refused]) if "sent" not in remark] == []


def test_what_did_not_go_well_is_counted() -> None:
    bad = replace(
        result(4000, is_stable=False),
        errors=Counter({"UNAVAILABLE": 1234, "DEADLINE_EXCEEDED": 2}),
        num_unsent=5,
        num_repeated=7,
    )
    assert list(remarks([bad])) == [
        "rows 1: latency did not stabilise within the time limit; "
        "1,234 requests failed with UNAVAILABLE; "
        "2 requests failed with DEADLINE_EXCEEDED; "
        "5 requests were not sent before the end; "
        "7 requests repeated rows sent before; "
        "requests sent 2.00 ms late on average, 2.00 ms at p99"
    ]


def test_a_note_is_said_once_for_all_loads_that_have_it() -> None:
    unstable = [result(4000, batch_size=size, is_stable=False) for size in (1, 4, 16)]
    late = "requests sent 2.00 ms late on average, 2.00 ms at p99"
    assert list(remarks(unstable)) == [f"all loads: latency did not stabilise within the time limit; {late}"]
    unstable[1] = replace(unstable[1], is_stable=True, num_unsent=3)
    assert list(remarks(unstable)) == [
        "rows 1; rows 16: latency did not stabilise within the time limit",
        f"all loads: {late}",
        "rows 4: 3 requests were not sent before the end",
    ]


def test_how_many_scores_were_checked_is_said() -> None:
    assert checked(report_of()) == "no scores were compared with expected ones"
    assert checked(report_of(num_checked=1234, max_abs_error=3e-8)) == (
        "1,234 scores compared with the expected ones, largest difference 3e-08"
    )


def test_what_a_search_found_is_said_for_each_batch_size() -> None:
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


def test_figures_are_written_for_reading() -> None:
    values = (None, True, False, 1234567, 26214400.4, 0.03125, 3e-8, "text")
    assert [number(value) for value in values] == [
        "–", "yes", "no", "1,234,567", "26,214,400", "0.03125", "3e-08", "text"
    ]  # fmt: skip


def test_the_conclusion_is_the_first_load_the_fastest_one_and_the_state_of_the_machine() -> None:
    one, many = result(), result(batch_size=64)
    said = conclusion(report_of(one, many, busy="load 4.0, 90% of the processors in use, 0% stolen"))
    expected = [f"p50 {number(found.value('p50_ms'))} ms, {number(found.rows_per_s)} rows/s" for found in (one, many)]
    assert said == (
        f"1 row: {expected[0]}; 64 rows: {expected[1]}; "
        "the machine was busy (load 4.0, 90% of the processors in use, 0% stolen)"
    )
    assert conclusion(report_of(one)) == f"1 row: {expected[0]}"
    assert conclusion(report_of()) == "nothing was measured"


def test_a_search_that_found_no_rate_says_what_was_reached_at_each() -> None:
    slow, slower = (
        result_of(Load(batch_size=1, rate_per_s=rate, arrivals="poisson"), [ms] * 400)
        for rate, ms in ((100.0, 64.0), (50.0, 32.0))
    )
    few = result_of(Load(batch_size=1, rate_per_s=25.0, arrivals="poisson"), [16.0] * 3)
    failed = SearchResult(rate_per_s=None, failed_per_s=25.0, num_probes=3)
    (said,) = searched(report_of(slow, slower, few, slo="p99=10ms", searches={1: failed}))
    reached = [number(found.value("p99_ms")) for found in (slow, slower)]
    assert said == (
        "p99=10ms with 1 row per request: no tested rate met the target "
        f"(p99 {reached[0]} ms at 100/s; p99 {reached[1]} ms at 50/s; p99 not reported at 25/s)"
    )
