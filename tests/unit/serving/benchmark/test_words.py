from collections import Counter
from dataclasses import replace

from serving.benchmark.records import SliceRecord
from serving.benchmark.report import BenchmarkReport, Load, LoadResult
from serving.benchmark.search import SearchResult
from serving.benchmark.words import checked, number, remarks, searched


def result(count: int = 400, *, is_stable: bool = True, problem: str = "") -> LoadResult:
    record = SliceRecord(num_due=count, num_answered=count)
    for latency in range(count):
        record.latency.record((latency + 1) * 1_000_000)
        record.lag.record(2_000_000)
    load = Load(batch_size=1, concurrency=1)
    return LoadResult.from_slices(load, [record], is_stable=is_stable, problem=problem, is_refused=bool(problem))


def report(*results: LoadResult, num_checked: int = 0, max_abs_error: float | None = None) -> BenchmarkReport:
    return BenchmarkReport(
        model_name="m", bench=results, num_checked=num_checked, max_abs_error=max_abs_error, environment={}
    )


def test_a_reason_is_said_once_for_all_that_it_withholds() -> None:
    same = replace(result(), withheld={"p99": "too few", "p999": "too few", "p90": "too odd"})
    assert list(remarks(same))[:2] == ["p99, p99.9 withheld: too few", "p90 withheld: too odd"]


def test_what_the_problem_says_is_no_remark_too() -> None:
    refused = result(is_stable=False, problem="the client was the bottleneck")
    assert set(refused.withheld.values()) == {"the client was the bottleneck"}
    assert [remark for remark in remarks(refused) if "sent" not in remark] == []


def test_what_did_not_go_well_is_counted() -> None:
    bad = replace(
        result(4000, is_stable=False),
        errors=Counter({"UNAVAILABLE": 1234, "DEADLINE_EXCEEDED": 2}),
        num_unsent=5,
        num_repeated=7,
    )
    assert list(remarks(bad)) == [
        "three windows did not agree in the time there was",
        "1,234 requests ended as UNAVAILABLE",
        "2 requests ended as DEADLINE_EXCEEDED",
        "5 requests could not be sent in time",
        "7 requests had rows that had been sent before",
        "sent 2.00 ms late in the mean, 2.00 at p99",
    ]


def test_how_many_scores_were_checked_is_said() -> None:
    assert checked(report()) == "no scores were compared with expected ones"
    assert checked(report(num_checked=1234, max_abs_error=3e-8)) == (
        "1,234 scores were compared with the expected ones; the worst is 3e-08 off"
    )


def test_what_a_search_found_is_said_for_each_batch_size() -> None:
    found = {
        1: SearchResult(rate_per_s=740.5, failed_per_s=777.5, num_probes=9),
        64: SearchResult(rate_per_s=None, failed_per_s=1.0, num_probes=8),
        128: SearchResult(rate_per_s=1e6, failed_per_s=None, num_probes=15),
    }
    assert list(searched(replace(report(), slo="p99=10ms", searches=found))) == [
        "p99=10ms, 1 rows in a request: held up to 740.5 requests/s, not at 777.5; 9 rates tried",
        "p99=10ms, 64 rows in a request: no rate holds it, not at 1; 8 rates tried",
        "p99=10ms, 128 rows in a request: held up to 1,000,000 requests/s; 15 rates tried",
    ]
    assert list(searched(report())) == []


def test_figures_are_written_for_reading() -> None:
    values = (None, True, False, 1234567, 26214400.4, 0.03125, 3e-8, "text")
    assert [number(value) for value in values] == [
        "–", "yes", "no", "1,234,567", "26,214,400", "0.03125", "3e-08", "text"
    ]  # fmt: skip
