"""How sides take turns, and what a ratio of them is."""

import statistics
from dataclasses import replace

from bench.harness.report import median_ratio, p50_ms, take_turns
from bench.serving.client import pairs_that_agree
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.serving.loadtest.stats.metrics import Estimate


def test_sides_take_turns_and_the_first_does_not_count() -> None:
    seen: list[str] = []

    def side(name: str, figures: list[float]) -> float:
        seen.append(name)
        return figures.pop(0)

    one, other = [100.0, 1.0, 4.0, 3.0], [100.0, 2.0, 2.0, 3.0]
    rates = take_turns({"one": lambda: side("one", one), "other": lambda: side("other", other)}, repeats=3)
    assert seen == ["one", "other"] * 4
    assert rates == {"one": [1.0, 4.0, 3.0], "other": [2.0, 2.0, 3.0]}
    assert median_ratio(rates, "one", "other") == statistics.median([0.5, 2.0, 1.0])


def test_p50_leaves_out_the_calls_that_warm_up() -> None:
    calls: list[int] = []
    assert p50_ms(lambda: calls.append(1), 3, num_warmup=2) >= 0
    assert len(calls) == 5


def test_runs_agree_where_their_intervals_overlap_and_pairs_without_a_bound_do_not_count() -> None:
    def result(interval_ns: tuple[int, int | None] | None) -> LoadResult:
        found = LoadResult.of_run(Run(load=Load(batch_size=1, concurrency=1), slices=(SliceRecord(),)), is_stable=True)
        low, high = interval_ns or (None, None)
        return replace(found, metrics={**found.metrics, "p50_ms": Estimate(value=1.0, low=low, high=high)})

    runs = [result(interval) for interval in ((1, 3), (2, 5), (5, 6), (1, 2), (3, 4))]
    assert pairs_that_agree(runs, "p50") == [True, True, False, False]
    assert pairs_that_agree([result(None), *runs, result((3, None))], "p50") == [True, True, False, False]
    assert pairs_that_agree(runs, "p99") == []
