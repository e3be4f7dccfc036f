import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.benchmark.report import BatchResult, BenchmarkReport


def test_figures_of_a_known_run() -> None:
    latency_ns = np.arange(1, 102) * 1_000_000  # 1 to 101 ms
    result = BatchResult.from_samples(16, latency_ns, elapsed_ns=2_000_000_000)
    assert (result.p50_ms, result.p90_ms, result.p95_ms, result.p99_ms) == pytest.approx((51, 91, 96, 100))
    assert (result.mean_ms, result.max_ms, result.num_requests) == (51, 101, 101)
    assert result.rows_per_s == 16 * 101 / 2


@given(st.lists(st.integers(1, 10**12), min_size=1))
def test_percentiles_are_ordered_and_within_the_samples(latency: list[int]) -> None:
    result = BatchResult.from_samples(1, np.array(latency, np.int64), elapsed_ns=sum(latency))
    figures = [min(latency) / 1e6, result.p50_ms, result.p90_ms, result.p95_ms, result.p99_ms, result.max_ms]
    assert figures == pytest.approx(sorted(figures))
    assert result.max_ms == max(latency) / 1e6


def test_json_and_csv_have_the_agreed_keys() -> None:
    result = BatchResult.from_samples(4, np.array([1_000_000, 3_000_000]), elapsed_ns=4_000_000)
    report = BenchmarkReport(
        model_name="movielens", bench=(result,), num_checked=0, max_abs_error=None, environment={"cpu": "one"}
    )
    document = json.loads(report.to_json())
    assert document["bench"][0].items() >= {"batch_size": 4, "p50_ms": 2.0, "rows_per_s": 2000.0}.items()
    assert {"p90_ms", "p95_ms", "p99_ms", "num_requests"} <= set(document["bench"][0])
    assert document["environment"] == {"cpu": "one"}
    (line,) = csv.DictReader(io.StringIO(report.to_csv()))
    assert {name: float(value) for name, value in line.items()} == pytest.approx(document["bench"][0])
