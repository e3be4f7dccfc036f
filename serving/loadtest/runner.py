"""For each batch size, runs closed-loop tests, open-loop tests, or a search for the highest rate.

This module determines the loads and their order; `measurement` measures a single load.
"""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.serving.client import Client
from rankline.serving.loadtest.config import GENERATED, LoadConfig, Slo
from rankline.serving.loadtest.generator.payloads import generate
from rankline.serving.loadtest.generator.worker_pool import STOPPED, Workers
from rankline.serving.loadtest.measurement import Bench, ScoreCheck, taken_columns
from rankline.serving.loadtest.rate import SloSearch, duration_s, measure_rate
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Floor, Load, SearchResult
from rankline.workflows.core.errors import ConfigError, DataError, ServingError
from rankline.workflows.core.machine import busyness, cpu_name
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.storage.artifacts import versions

_DEFAULT = LoadConfig()
_NUM_GENERATED = 1 << 16


def measure(
    client: Client,
    rows: pa.Table,
    batch_sizes: Sequence[int],
    *,
    config: LoadConfig = _DEFAULT,
    expected: npt.NDArray[Any] | None = None,
    version: int | None = None,
    identity: Client | None = None,
    process_ids: Callable[[], Sequence[int]] = tuple,
    progress: Progress = SILENT,
) -> BenchmarkReport:
    """Measure latency and throughput for each batch size and load.

    Ctrl-C or an error ends the benchmark early; completed measurements are then returned, and `problem` says why.

    Args:
        rows: raw rows to draw requests from, or whose values are combined to new rows; columns that the model does not
            take are dropped.
        expected: [rows.num_rows], expected scores of the rows, compared with a sample of the responses. If set,
            generated rows are scored before the measurement to obtain their expected scores.
        version: expected version of the ensemble; None for any.
        identity: client of a model on the same server that returns its input, to measure the client's own cost.
        process_ids: returns the ids of the server's processes, if it is on this machine.

    Raises:
        ConfigError: a batch size is below 1 or above the model's limit.
        DataError: there are no rows, or a trace cannot be read.
        ServingError: the server does not respond, rejects the rows, or gives a wrong score, before any measurement was
            completed.
    """
    check_batch_sizes(batch_sizes, client.schema.max_batch_size)
    if rows.num_rows == 0:
        raise DataError("the benchmark has no rows to draw from. Prepare data with a validation split first.")
    busy = busyness()
    if busy:
        progress.update(0, 1, f"the machine is busy: {busy}")
    rows = taken_columns(client, rows)
    if config.inputs == GENERATED:
        rng = np.random.default_rng(config.seed)
        rows = generate(rows, client.schema, _NUM_GENERATED, config.value_skew, rng).combine_chunks()
        expected = None if expected is None else client.predict(rows)
    check = ScoreCheck(expected, client.schema.outputs, config.tolerance, version=version)
    with Workers(config.processes) as workers:
        program = _Program(config, progress)
        if identity is not None:
            any_number = pa.table({tensor.name: np.arange(4096) for tensor in identity.schema.inputs})
            with Bench(identity, any_number, config, workers) as bench:
                program.measure_floor(bench)
        with Bench(client, rows, config, workers, check, process_ids) as bench:
            program.run(bench, batch_sizes)
    return BenchmarkReport(
        model_name=client.schema.name,
        bench=tuple(program.results),
        num_checked=check.num_checked,
        max_abs_error=check.max_abs_error if check.num_checked else None,
        environment=_environment(config),
        floors=tuple(program.floors),
        slo=config.slo,
        searches=program.searches or None,
        problem=program.problem,
        busy=busy,
        version=version,
    )


def check_batch_sizes(batch_sizes: Sequence[int], limit: int) -> None:
    """Raise ConfigError unless there is at least one batch size and all are between 1 and `limit`."""
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError(f"batch sizes are {list(batch_sizes)}, expected one or more positive integers.")
    if max(batch_sizes) > limit:
        raise ConfigError(
            f"batch size {max(batch_sizes)} exceeds the model's limit ({limit}). Use smaller batches, or export with a "
            "larger max_batch_size."
        )


class _Program:
    def __init__(self, config: LoadConfig, progress: Progress) -> None:
        self._config, self._progress = config, progress
        self.results: list[LoadResult] = []
        self.floors: list[Floor] = []
        self.searches: dict[int, SearchResult] = {}
        self.problem = ""

    def measure_floor(self, identity: Bench) -> None:
        config = replace(self._config, time_limit_s=self._config.min_duration_s)
        for concurrency in config.concurrency:
            result = identity.measure(Load(batch_size=1, concurrency=concurrency), config)
            if STOPPED in result.problem:  # the load generator has handled the Ctrl-C
                raise KeyboardInterrupt
            self.floors.append(
                Floor(
                    concurrency=concurrency,
                    requests_per_s=result.requests_per_s,
                    p50_ms=result.value("p50_ms"),
                    client_cpu_ms=result.client_cpu_ms,
                )
            )

    def run(self, bench: Bench, batch_sizes: Sequence[int]) -> None:
        try:
            if self._config.slo is not None:
                for batch_size in batch_sizes:
                    self._search(bench, batch_size, Slo.parse(self._config.slo))
                return
            loads = list(self._config.loads(batch_sizes))
            for number, load in enumerate(loads, 1):
                self._keep(bench.measure(load, self._config), number, len(loads))
        except _CutShortError:
            self.problem = "the last measurement was cut short; later ones were not run."
        except ServingError as error:
            if not self.results:
                raise
            self.problem = f"{error} Later measurements were not run."
        except KeyboardInterrupt:
            if not self.results:
                raise
            self.problem = "stopped by Ctrl-C; earlier measurements are complete."

    def _keep(self, result: LoadResult, number: int, of: int) -> None:
        self.results.append(result)
        self._progress.update(number, of, _note(result))
        if result.is_cut_short:
            raise _CutShortError

    def _search(self, bench: Bench, batch_size: int, slo: Slo) -> None:
        def measure_at(rate_per_s: float) -> LoadResult:
            seconds = duration_s(rate_per_s, slo, self._config)
            say(f"testing {rate_per_s:,.1f} requests/s for {self._config.warmup_s + seconds:.0f} s")
            result = measure_rate(bench, batch_size, rate_per_s, slo, self._config)
            self.results.append(result)
            if result.is_cut_short:
                raise _CutShortError
            return result

        def say(note: str) -> None:
            self._progress.update(len(self.results), len(self.results) + 1, note)

        search = SloSearch(slo, measure_at, say)
        try:
            self.searches[batch_size] = search.run()
        except (_CutShortError, ServingError, KeyboardInterrupt):
            found = search.so_far("it was cut short")
            self.searches |= {batch_size: found} if found.num_probes else {}
            raise


class _CutShortError(Exception):
    pass


def _note(result: LoadResult) -> str:
    p50_ms = result.value("p50_ms")
    latency = "no latency" if p50_ms is None else f"p50 {p50_ms:.2f} ms"
    return f"{result.load.words}: {latency}, {result.rows_per_s:,.0f} rows/s"


def _environment(config: LoadConfig) -> dict[str, str]:
    kind = "closed loop" if config.is_closed_loop else "open loop"
    rows = (
        f"generated rows with skew {config.value_skew:g}"
        if config.inputs == GENERATED
        else f"held-out rows with skew {config.row_skew:g}"
    )
    return {
        **versions(),
        "cpu": cpu_name(),
        "cpu_count": str(os.cpu_count()),
        "command": _command(),
        "load": f"{kind}, {config.processes} client processes with a connection each over {config.transport}, {rows}",
    }


def _command() -> str:
    path = Path(sys.argv[0])
    program = ["python", "-m", path.parent.name] if path.name == "__main__.py" else [path.name]
    return shlex.join([*program, *sys.argv[1:]])
