import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.compare import Difference, check_comparable, compare
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Load, SearchResult
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.workflows.core.errors import ArtifactError, ConfigError
from tests.factories.reports import report_of, result_of


def result(load: Load, *, slower: float = 1.0, count: int = 2000) -> LoadResult:
    """Latencies of 1 ms to 2 ms times `slower`, in 8 slices."""
    latencies_ms = np.random.default_rng(0).permutation(np.linspace(1, 2, count)) * slower
    return result_of(load, latencies_ms, num_slices=8, counts={"num_answered": round(count / 8 / slower)})


def report(*results: LoadResult, **changes: Any) -> BenchmarkReport:
    return report_of(*results, **{"environment": {"cpu": "one", "command": "a"}, **changes})


ONE = Load(batch_size=1, concurrency=1)
BASE = report(result(ONE))


def test_difference_of_known_bounds() -> None:
    before, after = (
        Estimate(value=10, low=8, high=10 * math.exp(0.3)),
        Estimate(value=20, low=20 * math.exp(-0.4), high=25),
    )
    found = Difference.between("rows_1", "p50_ms", before, after)
    assert found.change == pytest.approx(1.0)
    assert found.low == pytest.approx(2 * math.exp(-0.5) - 1)  # 0.3 and 0.4 to the bounds: 0.5 together
    assert found.high == pytest.approx(2 * math.exp(math.hypot(math.log(1.25), math.log(1.25))) - 1)


@given(*[st.floats(0.1, 100)] * 2, *[st.floats(1, 3)] * 4)
def test_difference_the_other_way_round_is_the_inverse(
    old: float, new: float, a: float, b: float, c: float, d: float
) -> None:
    before, after = Estimate(value=old, low=old / a, high=old * b), Estimate(value=new, low=new / c, high=new * d)
    there = Difference.between("l", "p50_ms", before, after)
    back = Difference.between("l", "p50_ms", after, before)
    assert there.low is not None
    assert there.high is not None
    assert back.high is not None
    assert there.low <= there.change + 1e-9
    assert there.change <= there.high + 1e-9
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1)


@pytest.mark.parametrize(
    ("figure", "change", "low", "high", "verdict"),
    [
        ("p50_ms", 0.5, 0.2, 0.8, "regressed"),
        ("p50_ms", 0.5, 0.05, 0.9, "may have"),
        ("p50_ms", 0.5, None, 0.9, "may have"),  # what is not stated bounds nothing
        ("p50_ms", 0.05, -0.1, 0.2, ""),
        ("p50_ms", -0.5, -0.6, -0.4, ""),
        ("rows_per_s", -0.5, -0.6, -0.4, "regressed"),
        ("rows_per_s", -0.5, -0.9, -0.05, "may have"),
        ("rows_per_s", 0.5, 0.2, 0.8, ""),
        ("highest_requests_per_s", -0.5, -0.6, -0.4, "regressed"),
    ],
)
def test_difference_counts_as_a_regression(
    figure: str, change: float, low: float | None, high: float, verdict: str
) -> None:
    found = Difference(load="l", figure=figure, before=1, after=1 + change, change=change, low=low, high=high)
    assert found.regressed(0.1) == (verdict == "regressed")
    assert found.may_have_regressed(0.1) == (verdict == "may have")


def test_compare_of_a_report_with_itself_finds_no_change() -> None:
    found = compare(BASE, BASE, 0.0)
    assert [(d.load, d.figure, d.change) for d in found.differences] == [
        ("1 row", name, 0) for name in ("p50_ms", "p99_ms", "rows_per_s")
    ]
    assert not any((found.regressions, found.inconclusive, found.remarks, found.only_before, found.only_after))


def test_compare_finds_regressions_of_a_slower_run() -> None:
    found = compare(BASE, report(result(ONE, slower=2)), 0.5)
    changes = {d.figure: d.change for d in found.differences}
    assert changes == pytest.approx({"p50_ms": 1.0, "p99_ms": 1.0, "rows_per_s": -0.5}, rel=0.01)
    assert {d.figure for d in found.regressions} == {"p50_ms", "p99_ms"}  # rows/s is not lower by more than half
    assert len(compare(BASE, report(result(ONE, slower=2)), 0.1).regressions) == 3


def test_compare_names_loads_of_one_report() -> None:
    open_loop = Load(batch_size=4, rate_per_s=250.0, arrivals="poisson")
    found = compare(
        report(*BASE.bench, result(Load(batch_size=64, concurrency=8))), report(*BASE.bench, result(open_loop)), 0.1
    )
    assert found.only_before == ("64 rows, 8 in flight",)
    assert found.only_after == ("4 rows at 250 requests/s (poisson)",)
    with pytest.raises(
        ConfigError,
        match=r"the reports have no load in common\. The loads are 1 row in the first report and 4 rows at 250 req",
    ):
        compare(BASE, report(result(open_loop)), 0.1)
    with pytest.raises(ConfigError, match=r"maximum regression is -0\.1"):
        compare(BASE, BASE, -0.1)


OPEN = Load(batch_size=4, rate_per_s=250.0, arrivals="poisson")


@pytest.mark.parametrize(
    ("load", "batch_sizes", "config", "is_comparable"),
    [
        (ONE, [1, 4], LoadConfig(concurrency=(1, 8)), True),
        (ONE, [4], LoadConfig(), False),
        (ONE, [1], LoadConfig(concurrency=(8,)), False),
        (ONE, [1], LoadConfig(rate=(250,)), False),
        (ONE, [1], LoadConfig(slo="p99=10ms"), False),
        (OPEN, [4], LoadConfig(rate=(250, 500)), True),
        (OPEN, [4], LoadConfig(rate=(250,), arrivals="constant"), False),
        (OPEN, [4], LoadConfig(rate=(500,)), False),
        (OPEN, [4], LoadConfig(), False),
    ],
)
def test_loads_are_compared_before_measuring(
    load: Load, batch_sizes: list[int], config: LoadConfig, is_comparable: bool
) -> None:
    with nullcontext() if is_comparable else pytest.raises(ConfigError, match="has no load in common with the earlier"):
        check_comparable(report(result(load)), batch_sizes, config)


def test_schedule_is_compared_before_measuring(tmp_path: Path) -> None:
    times = tmp_path / "times.csv"
    times.write_text("0\n0.5\n1\n")
    config = LoadConfig(arrivals=str(times))
    (load,) = config.loads([4])
    check_comparable(report(result(load)), [4], config)
    assert load.rate_per_s is not None
    with pytest.raises(ConfigError, match="has no load in common with the earlier"):
        check_comparable(report(result(replace(load, rate_per_s=2 * load.rate_per_s))), [4], config)


def test_targets_of_searches_are_compared_before_measuring() -> None:
    search = SearchResult(rate_per_s=1000, failed_per_s=1050, num_probes=9)
    earlier = report(*BASE.bench, slo="p99=10ms", searches={1: search})
    check_comparable(earlier, [1, 2], LoadConfig(slo="p99=10ms"))
    for batch_sizes, config in (
        ([2], LoadConfig(slo="p99=10ms")),
        ([1], LoadConfig(slo="p99=9ms")),
        ([1], LoadConfig()),
    ):
        with pytest.raises(ConfigError, match="whose loads are 1 row, p99=10ms"):
            check_comparable(earlier, batch_sizes, config)


def test_compare_of_searches_is_by_their_highest_rate() -> None:
    def searched(rate: float | None, failed: float | None) -> BenchmarkReport:
        search = SearchResult(rate_per_s=rate, failed_per_s=failed, num_probes=9)
        return report(*BASE.bench, slo="p99=10ms", searches={1: search})

    (found,) = compare(searched(1000, 1050), searched(500, 525), 0.1).regressions
    assert (found.load, found.figure) == ("1 row, p99=10ms", "highest_requests_per_s")
    assert found.change == pytest.approx(-0.5)
    assert (found.low, found.high) == pytest.approx((500 / 1050 - 1, 525 / 1000 - 1))
    assert compare(searched(1000, 1050), searched(None, 1), 0.1).not_reported == (
        "highest requests/s, 1 row, p99=10ms, now: no tested rate met the target",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: 1, "is not a benchmark report"),
        (lambda document: {"rows": document}, "is not a benchmark report"),
        (lambda document: {**document, "format_version": 1}, r"has format version 1, expected 2\. Run the benchmark"),
        (lambda document: {**document, "bench": [2]}, "is a damaged report"),
        (lambda document: {**document, "bench": [{**document["bench"][0], "p50_ms": "fast"}]}, "is a damaged report"),
    ],
)
def test_damaged_report_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    with pytest.raises(ArtifactError, match=r"other\.json does not exist"):
        BenchmarkReport.read(path)
    path.write_bytes(b"\xff\xfe rows,p50\n")
    with pytest.raises(ArtifactError, match="not valid JSON"):
        BenchmarkReport.read(path)
    path.write_text(json.dumps(change(BASE.to_dict())))
    with pytest.raises(ArtifactError, match=message):
        BenchmarkReport.read(path)
