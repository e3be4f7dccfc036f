import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.compare import Difference, compare
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


def test_known_bounds_give_a_known_difference() -> None:
    before, after = (
        Estimate(value=10, low=8, high=10 * math.exp(0.3)),
        Estimate(value=20, low=20 * math.exp(-0.4), high=25),
    )
    found = Difference.between("rows_1", "p50_ms", before, after)
    assert found.change == pytest.approx(1.0)
    assert found.low == pytest.approx(2 * math.exp(-0.5) - 1)  # 0.3 and 0.4 to the bounds: 0.5 together
    assert found.high == pytest.approx(2 * math.exp(math.hypot(math.log(1.25), math.log(1.25))) - 1)


@given(*[st.floats(0.1, 100)] * 2, *[st.floats(1, 3)] * 4)
def test_the_other_way_round_is_the_inverse(old: float, new: float, a: float, b: float, c: float, d: float) -> None:
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
def test_what_counts_as_a_regression(figure: str, change: float, low: float | None, high: float, verdict: str) -> None:
    found = Difference(load="l", figure=figure, before=1, after=1 + change, change=change, low=low, high=high)
    assert found.regressed(0.1) == (verdict == "regressed")
    assert found.may_have_regressed(0.1) == (verdict == "may have")


def test_a_report_against_itself_has_not_changed() -> None:
    found = compare(BASE, BASE, 0.0)
    assert [(d.load, d.figure, d.change) for d in found.differences] == [
        ("rows_1", name, 0) for name in ("p50_ms", "p99_ms", "rows_per_s")
    ]
    assert not any((found.regressions, found.inconclusive, found.remarks, found.only_before, found.only_after))


def test_a_slower_run_regressed_in_all_figures() -> None:
    found = compare(BASE, report(result(ONE, slower=2)), 0.5)
    changes = {d.figure: d.change for d in found.differences}
    assert changes == pytest.approx({"p50_ms": 1.0, "p99_ms": 1.0, "rows_per_s": -0.5}, rel=0.01)
    assert {d.figure for d in found.regressions} == {"p50_ms", "p99_ms"}  # rows/s is not lower by more than half
    assert len(compare(BASE, report(result(ONE, slower=2)), 0.1).regressions) == 3


def test_loads_that_are_not_in_both_are_named() -> None:
    open_loop = Load(batch_size=4, rate_per_s=250.0, arrivals="poisson")
    found = compare(
        report(*BASE.bench, result(Load(batch_size=64, concurrency=8))), report(*BASE.bench, result(open_loop)), 0.1
    )
    assert found.only_before == ("rows_64/concurrency_8",)
    assert found.only_after == ("rows_4/rate_250 (poisson)",)
    with pytest.raises(ConfigError, match="the reports have no load in common: rows_1 before, rows_4/rate_250"):
        compare(BASE, report(result(open_loop)), 0.1)
    with pytest.raises(ConfigError, match=r"largest regression allowed is -0\.1"):
        compare(BASE, BASE, -0.1)


def test_what_a_report_does_not_state_is_named_with_the_reason() -> None:
    found = compare(BASE, report(result(ONE, count=100)), 0.1)
    assert found.not_reported == ("rows_1, p99_ms, now: 100 samples, at least 368 required",)
    assert {d.figure for d in found.differences} == {"p50_ms", "rows_per_s"}


def test_what_else_differs_is_said() -> None:
    other = replace(BASE, model_name="criteo", environment={"cpu": "two", "command": "b"}, problem="stopped by Ctrl-C")
    assert compare(BASE, other, 0.1).remarks == (
        "model was movielens, is criteo", "cpu was one, is two", "now, stopped by Ctrl-C"
    )  # fmt: skip


def test_of_a_search_the_highest_rate_is_compared() -> None:
    def searched(rate: float | None, failed: float | None) -> BenchmarkReport:
        search = SearchResult(rate_per_s=rate, failed_per_s=failed, num_probes=9)
        return report(*BASE.bench, slo="p99=10ms", searches={1: search})

    (found,) = compare(searched(1000, 1050), searched(500, 525), 0.1).regressions
    assert (found.load, found.figure) == ("rows_1, p99=10ms", "highest_requests_per_s")
    assert found.change == pytest.approx(-0.5)
    assert (found.low, found.high) == pytest.approx((500 / 1050 - 1, 525 / 1000 - 1))
    assert compare(searched(1000, 1050), searched(None, 1), 0.1).not_reported == (
        "rows_1, p99=10ms, highest_requests_per_s, now: no tested rate met the target",
    )


def damaged(path: Path, **changes: Any) -> Path:
    document = {**BASE.to_dict(), **changes}
    path.write_text(json.dumps(document))
    return path


def test_what_is_no_report_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    with pytest.raises(ArtifactError, match=r"there is no .*other\.json"):
        BenchmarkReport.read(path)
    for content, reason in (
        (b"rows,p50\n", "nor any JSON"),
        (b"\xff\xfe\x00", "nor any JSON"),
        (b"[1]", "is not a benchmark report"),
        (b'{"rows": 1}', "is not a benchmark report"),
    ):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=reason):
            BenchmarkReport.read(path)
    with pytest.raises(ArtifactError, match="has format version 1, this Rankline reads 2"):
        BenchmarkReport.read(damaged(path, format_version=1))
    entry = BASE.to_dict()["bench"][0]
    for bench in (
        1,
        [2],
        [{"batch_size": 1}],
        [{**entry, "p50_ms": "fast"}],
        [{**entry, "intervals_ms": {"p50": [1]}}],
    ):
        with pytest.raises(ArtifactError, match="is a damaged report"):
            BenchmarkReport.read(damaged(path, bench=bench))
