"""Closed loop: one request in flight over one gRPC connection, the next one sent when the answer is there.

It measures how long a request takes when nothing else runs. It does not show what queueing adds at an arrival rate.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from serving.benchmark.report import BatchResult, BenchmarkReport
from serving.client import Client
from workflows.artifacts import versions
from workflows.errors import ConfigError, DataError, ServingError
from workflows.machine import cpu_name
from workflows.progress import SILENT, Progress

Clock = Callable[[], int]

_BLOCK_ROWS = 1 << 18
_BLOCK_REQUESTS = 256


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """How much load.

    Attributes:
        warmup_requests: sent before each measurement and left out of it.
        min_requests, min_duration_s: a measurement ends when both are reached.
        seed: of the draw of rows.
        tolerance: largest difference from an expected score that passes.
    """

    warmup_requests: int = 20
    min_requests: int = 200
    min_duration_s: float = 2.0
    seed: int = 0
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        if self.min_requests < 1 or self.warmup_requests < 0:
            raise ConfigError(
                f"min_requests is {self.min_requests} and warmup_requests {self.warmup_requests}, "
                "expected at least 1 and 0."
            )


def measure(
    client: Client,
    rows: pa.Table,
    batch_sizes: Sequence[int],
    *,
    config: LoadConfig = LoadConfig(),
    expected: npt.NDArray[Any] | None = None,
    clock: Clock = time.perf_counter_ns,
    progress: Progress = SILENT,
) -> BenchmarkReport:
    """Measure latency and throughput for each batch size.

    Args:
        client: connected to the model.
        rows: raw rows that requests are drawn from; columns that the model does not take are left out.
        batch_sizes: rows per request, one measurement each.
        config: how much load.
        expected: [rows.num_rows], what the same client answered to these rows before the load; every score that comes
            back is then compared with it.
        clock: nanoseconds from any origin.
        progress: told after each batch size.

    Raises:
        ConfigError: a batch size is below 1 or larger than the model takes.
        DataError: there are no rows.
        RequestError: the rows do not fit the model.
        ServingError: the server died, or a score under load is not the expected one.
    """
    check_batch_sizes(batch_sizes, client.schema.max_batch_size)
    if rows.num_rows == 0:
        raise DataError("the benchmark has no rows to draw from. Prepare data with a validation split first.")
    inputs = {tensor.name for tensor in client.schema.inputs}
    load = _Load(
        client=client,
        rows=rows.select([name for name in rows.column_names if name in inputs]).combine_chunks(),
        expected=expected,
        tolerance=config.tolerance,
        clock=clock,
        rng=np.random.default_rng(config.seed),
    )
    results = []
    for batch_size in batch_sizes:
        result = _measure_one(load, batch_size, config)
        results.append(result)
        note = f"{batch_size} rows: p50 {result.p50_ms:.2f} ms, {result.rows_per_s:,.0f} rows/s"
        progress.update(len(results), len(batch_sizes), note)
    return BenchmarkReport(
        model_name=client.schema.name,
        bench=tuple(results),
        num_checked=load.num_checked,
        max_abs_error=load.max_abs_error if load.num_checked else None,
        environment=_environment(),
    )


def check_batch_sizes(batch_sizes: Sequence[int], limit: int) -> None:
    """Refuse batch sizes that cannot be measured, before anything is started for them.

    Args:
        batch_sizes: rows per request.
        limit: the model's max_batch_size.

    Raises:
        ConfigError: there is none, or one is below 1 or above `limit`.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError(f"batch sizes are {list(batch_sizes)}, expected at least one, each at least 1.")
    if max(batch_sizes) > limit:
        raise ConfigError(
            f"batch size {max(batch_sizes)} is larger than the model takes ({limit}). "
            "Choose smaller ones, or export with a larger max_batch_size."
        )


@dataclass(kw_only=True)
class _Load:
    """Sends blocks of requests made of freshly drawn rows, and compares what comes back."""

    client: Client
    rows: pa.Table
    expected: npt.NDArray[Any] | None
    tolerance: float
    clock: Clock
    rng: np.random.Generator
    num_checked: int = 0
    max_abs_error: float = 0.0

    def run_block(self, batch_size: int, num_requests: int) -> tuple[list[int], int]:
        """Lay out the requests, then send them one after another.

        Returns:
            The latency of each in nanoseconds, and the time that all of them took.
        """
        draws = self.rng.integers(0, self.rows.num_rows, (num_requests, batch_size))
        requests = [self.client.prepare(self.rows.take(pa.array(draw))) for draw in draws]
        latency_ns, scores = [], []
        begin_ns = self.clock()
        for request in requests:
            sent_ns = self.clock()
            scores.append(self.client.infer(request))
            latency_ns.append(self.clock() - sent_ns)
        elapsed_ns = self.clock() - begin_ns
        if self.expected is not None:
            self._compare(np.stack(scores), self.expected[draws])
        return latency_ns, elapsed_ns

    def _compare(self, scores: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        error = float(np.abs(scores - expected).max())
        if not error <= self.tolerance:  # NaN is an error too
            raise ServingError(
                f"scores returned under load are up to {error:.3g} off the expected ones, "
                f"more than the tolerance {self.tolerance:g}. Export the ensemble again."
            )
        self.num_checked += scores.size
        self.max_abs_error = max(self.max_abs_error, error)


def _measure_one(load: _Load, batch_size: int, config: LoadConfig) -> BatchResult:
    block_requests = min(max(_BLOCK_ROWS // batch_size, 1), _BLOCK_REQUESTS)
    if config.warmup_requests:
        load.run_block(batch_size, config.warmup_requests)
    latency_ns: list[int] = []
    elapsed_ns = 0
    while len(latency_ns) < config.min_requests or elapsed_ns < config.min_duration_s * 1e9:
        block_latency_ns, block_elapsed_ns = load.run_block(batch_size, block_requests)
        latency_ns += block_latency_ns
        elapsed_ns += block_elapsed_ns
    return BatchResult.from_samples(batch_size, np.asarray(latency_ns, np.int64), elapsed_ns)


def _environment() -> dict[str, str]:
    return {
        **versions(),
        "cpu": cpu_name(),
        "cpu_count": str(os.cpu_count()),
        "load": "closed loop, one request in flight, one gRPC connection, rows drawn from real ones",
    }
