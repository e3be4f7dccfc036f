"""One measurement: encode requests, send them from the client processes, observe the server, and summarize."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from rankline.serving.client import Client
from rankline.serving.loadtest.analysis.resources import ResourceMeter
from rankline.serving.loadtest.analysis.score_check import Answered, ScoreCheck
from rankline.serving.loadtest.analysis.server_breakdown import Breakdown, Reading, Statistics
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.generator.arrivals import ConstantArrivals, Times, TraceArrivals, share
from rankline.serving.loadtest.generator.connections import connect
from rankline.serving.loadtest.generator.payloads import lay_out
from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.worker_pool import Outcome, Workers
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, Run, bottleneck
from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord
from rankline.serving.loadtest.stats.stability import Windows
from rankline.workflows.core.errors import ServerError

_CLOSED_LOOP_REQUESTS = 20_000


class Bench:
    """Measures one model, load by load, within a `with` block.

    Args:
        client: connected client of the model, which encodes requests.
        rows: raw rows to draw requests from; columns that the model does not take are dropped.
        config: source of the score tolerance and the seed.
        workers: the client processes.
        check: comparison of the scores; None for no comparison.
        process_ids: returns the ids of the server's processes, if it is on this machine.
    """

    def __init__(
        self,
        client: Client,
        rows: pa.Table,
        config: LoadConfig,
        workers: Workers,
        check: ScoreCheck | None = None,
        process_ids: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._client, self._rows, self._workers = client, taken_columns(client, rows), workers
        self._statistics = Statistics(client.url, client.schema.name)
        self._meter = ResourceMeter(process_ids)
        self._check = check or ScoreCheck(None, client.schema.outputs, config.tolerance)
        self._rng = np.random.default_rng(config.seed)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self._statistics.close()

    def measure(self, load: Load, config: LoadConfig) -> LoadResult:
        """Measure one load.

        Raises:
            DataError: the trace cannot be read.
            ServingError: no server responds, or a score differs from the expected one.
        """
        due_ns, time_limit_s = _schedule(load, config)
        num_processes = min(config.processes, load.concurrency or config.processes)
        wanted = _CLOSED_LOOP_REQUESTS if due_ns is None else len(due_ns)
        requests = lay_out(
            self._client, self._rows, load.batch_size, wanted, self._rng, config.row_skew, num_takers=num_processes
        )
        jobs = [
            Job(
                process=number,
                connect=partial(connect, config.transport, self._client.url),
                messages=requests.messages[number::num_processes],
                warmup_s=config.warmup_s,
                time_limit_s=time_limit_s,
                timeout_s=config.timeout_s,
                sample_every=config.check_every,
                concurrency=_part(load.concurrency, number, num_processes),
                due_ns=None if due_ns is None else share(due_ns, number, num_processes),
            )
            for number in range(num_processes)
        ]
        readings: list[Reading | None] = []
        windows = Windows(config.window_s, config.stability)
        outcome = self._workers.run(
            jobs,
            on_begin=lambda: self._look(readings, self._meter.begin),
            is_enough=lambda slices: self._is_enough(slices, windows, config),
            on_end=lambda: self._look(readings, self._meter.end),
        )
        numbered = ((message * num_processes + process, process, body) for process, message, body in outcome.samples)
        self._check.compare(
            Answered(number=number, process=process, rows=requests.draws[number], body=body)
            for number, process, body in numbered
        )
        return self._sum_up(load, config, outcome, readings, num_processes)

    def _look(self, readings: list[Reading | None], look_at_processes: Callable[[], None]) -> None:
        """Read the statistics. A server that has just exited returns none, and earlier measurements are kept."""
        try:
            readings.append(self._statistics.read())
        except ServerError:
            readings.append(None)
        look_at_processes()

    def _is_enough(self, slices: Sequence[SliceRecord], windows: Windows, config: LoadConfig) -> bool:
        self._meter.sample()
        windows.follow(slices)
        return (
            not config.is_trace
            and len(slices) * SLICE_S >= config.min_duration_s
            and windows.num_answered >= config.min_requests
            and windows.is_stable
        )

    def _sum_up(
        self, load: Load, config: LoadConfig, outcome: Outcome, readings: list[Reading | None], num_processes: int
    ) -> LoadResult:
        run = Run(load=load, slices=outcome.slices or (SliceRecord(),))
        windows = Windows(config.window_s, config.stability)
        windows.follow(run.slices)  # again, since more responses have arrived
        latency = run.whole.latency
        refusal = bottleneck(run.client_cost, latency.mean_ns / 1e6, num_processes) if latency.total else ""
        return LoadResult.of_run(
            run,
            is_stable=windows.is_stable,
            server=self._meter.result(),
            breakdown=self._breakdown(run, *readings),
            problem=_failure(run, outcome) or refusal or _lateness(run, config),
            is_refused=bool(refusal) and config.slo is None,  # in a search, a late client only understates the rate
            is_cut_short=bool(outcome.failure),
        )

    def _breakdown(self, run: Run, before: Reading | None, after: Reading | None) -> Breakdown | None:
        if before is None or after is None or not run.whole.latency.total:
            return None
        return self._statistics.breakdown(
            before,
            after,
            num_requests=run.whole.num_answered,
            latency_ms=run.whole.latency.mean_ns / 1e6,
            client_ms=run.client_cost.latency_ms,
        )


def taken_columns(client: Client, rows: pa.Table) -> pa.Table:
    taken = {column.name for column in client.schema.columns} | {tensor.name for tensor in client.schema.inputs}
    return rows.select([name for name in rows.column_names if name in taken]).combine_chunks()


def _failure(run: Run, outcome: Outcome) -> str:
    if outcome.failure:
        return f"{outcome.failure} after {run.duration_s:g} s; the figures are from before that."
    if run.whole.latency.total:
        return ""
    if run.whole.num_answered:
        return (
            f"no request that was due in these {run.duration_s:g} s was answered in them: all answers were to earlier "
            "requests. The load is more than client or server can handle. Lower the rate."
        )
    return f"nothing was answered in {run.duration_s:g} s: {dict(run.whole.errors) or 'no errors either'}."


def _lateness(run: Run, config: LoadConfig) -> str:
    """Return the problem with timed-out requests; empty in a search, which offers too high rates on purpose."""
    num_late = run.whole.errors["DEADLINE_EXCEEDED"]
    if not num_late or config.slo is not None:
        return ""
    return (
        f"{num_late:,} requests had no answer within {config.timeout_s:g} s: "
        "the server stalled, or the load is more than it can handle."
    )


def _schedule(load: Load, config: LoadConfig) -> tuple[Times | None, float]:
    """Return the times of requests from the start of the warm-up, and the maximum duration of the measurement."""
    limit_s = math.ceil(config.time_limit_s / SLICE_S) * SLICE_S
    if load.rate_per_s is None:
        return None, limit_s
    arrivals = config.arrivals_at(load.rate_per_s)
    if not isinstance(arrivals, TraceArrivals):
        return arrivals.times_ns(config.warmup_s + limit_s), limit_s
    duration_s = (math.floor(arrivals.duration_s / SLICE_S) + 1) * SLICE_S
    lead = ConstantArrivals(rate_per_s=arrivals.rate_per_s).times_ns(config.warmup_s)
    return np.concatenate([lead, arrivals.times_ns(duration_s) + int(config.warmup_s * 1e9)]), duration_s


def _part(concurrency: int | None, number: int, of: int) -> int | None:
    return None if concurrency is None else concurrency // of + (number < concurrency % of)
