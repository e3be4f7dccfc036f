"""Reports of measurements that never were: latencies in, what a report says of them out."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Load, Run
from rankline.serving.loadtest.stats.counters import SliceRecord

ALONE = Load(batch_size=1, concurrency=1)


def record_of(latencies_ms: Iterable[float], **counts: Any) -> SliceRecord:
    """A slice in which requests with these latencies were answered; `counts` in place of what follows from them."""
    latencies_ns = [round(latency_ms * 1e6) for latency_ms in latencies_ms]
    record = SliceRecord(**{"num_due": len(latencies_ns), "num_answered": len(latencies_ns), **counts})
    for latency_ns in latencies_ns:
        record.latency.record(latency_ns)
    return record


def result_of(
    load: Load = ALONE,
    latencies_ms: Iterable[float] = range(1, 401),
    *,
    num_slices: int = 1,
    counts: Mapping[str, Any] | None = None,
    **outcome: Any,
) -> LoadResult:
    """A stable run with these latencies, one after another, in slices of these `counts` (see `record_of`)."""
    slices = (record_of(part, **(counts or {})) for part in np.array_split(np.asarray(list(latencies_ms)), num_slices))
    return LoadResult.of_run(Run(load=load, slices=tuple(slices)), **{"is_stable": True, **outcome})


def report_of(*results: LoadResult, **changes: Any) -> BenchmarkReport:
    """A report with nothing but these results, unless something else is given."""
    plain = {"model_name": "movielens", "num_checked": 0, "max_abs_error": None, "environment": {}}
    return BenchmarkReport(bench=results, **{**plain, **changes})
