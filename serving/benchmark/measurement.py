"""One measurement: lay out requests, have the client processes send them, look at the server meanwhile, sum up."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from serving.benchmark.arrivals import ConstantArrivals, Times, TraceArrivals, share
from serving.benchmark.breakdown import Breakdown, Reading, Statistics
from serving.benchmark.checks import ScoreCheck
from serving.benchmark.config import LoadConfig
from serving.benchmark.engine import Job
from serving.benchmark.records import SLICE_S, SliceRecord
from serving.benchmark.report import Load, LoadResult, client_cost
from serving.benchmark.requests import lay_out
from serving.benchmark.resources import ResourceMeter
from serving.benchmark.selfcheck import bottleneck
from serving.benchmark.windows import Windows
from serving.benchmark.workers import Outcome, Workers
from serving.client import Client
from workflows.errors import ServerError

_CLOSED_LOOP_REQUESTS = 20_000
_SAMPLE_EVERY = 8


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a measurement needs, made once for all of them.

    Attributes:
        client: connected to the model; lays out requests.
        url: HOST:PORT of its server.
        rows: only columns that the model takes, in one chunk.
        workers: the client processes.
        statistics: of the model and its steps.
        meter: of the server's processes.
        check: of the scores.
        rng: draws rows.
    """

    client: Client
    url: str
    rows: pa.Table
    workers: Workers
    statistics: Statistics
    meter: ResourceMeter
    check: ScoreCheck
    rng: np.random.Generator

    def measure(self, load: Load, config: LoadConfig) -> LoadResult:
        """Measure one load.

        Raises:
            DataError: the trace cannot be read.
            RequestError: the rows do not fit the model.
            ServingError: no server answers, or a score is not the expected one.
        """
        due_ns, time_limit_s = _schedule(load, config)
        num_processes = min(config.processes, load.concurrency or config.processes)
        wanted = _CLOSED_LOOP_REQUESTS if due_ns is None else len(due_ns)
        requests = lay_out(
            self.client, self.rows, load.batch_size, wanted, self.rng, config.row_skew, num_takers=num_processes
        )
        jobs = [
            Job(
                process=number,
                url=self.url,
                transport=config.transport,
                messages=requests.messages[number::num_processes],
                warmup_s=config.warmup_s,
                time_limit_s=time_limit_s,
                timeout_s=config.timeout_s,
                sample_every=_SAMPLE_EVERY,
                concurrency=_part(load.concurrency, number, num_processes),
                due_ns=None if due_ns is None else share(due_ns, number, num_processes),
            )
            for number in range(num_processes)
        ]
        readings: list[Reading | None] = []
        windows = Windows(config.window_s, config.stability)
        outcome = self.workers.run(
            jobs,
            on_begin=lambda: self._look(readings, self.meter.begin),
            is_enough=lambda slices: self._is_enough(slices, windows, config),
            on_end=lambda: self._look(readings, self.meter.end),
        )
        self.check.compare(
            (requests.draws[message * num_processes + process], body) for process, message, body in outcome.samples
        )
        return self._sum_up(load, config, outcome, readings, num_processes)

    def _look(self, readings: list[Reading | None], look_at_processes: Callable[[], None]) -> None:
        """Read the statistics; a server that has just died gives none, and what was measured before is kept."""
        try:
            readings.append(self.statistics.read())
        except ServerError:
            readings.append(None)
        look_at_processes()

    def _is_enough(self, slices: Sequence[SliceRecord], windows: Windows, config: LoadConfig) -> bool:
        self.meter.sample()
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
        slices = outcome.slices or (SliceRecord(),)
        whole = SliceRecord.merged(slices)
        windows = Windows(config.window_s, config.stability)
        windows.follow(slices)  # anew, for answers have come in since
        mean_ms = whole.latency.mean_ns / 1e6
        cost = client_cost(slices)
        refusal = bottleneck(cost, mean_ms, num_processes) if whole.latency.total else ""
        problem = refusal
        num_late = whole.errors["DEADLINE_EXCEEDED"]
        if num_late and not refusal and config.slo is None:  # a search offers more than can be done
            problem = (
                f"{num_late:,} requests had no answer within {config.timeout_s:g} s: "
                "the server stalled, or is asked for more than it can do."
            )
        if outcome.failure:
            problem = f"{outcome.failure} after {len(slices) * SLICE_S:g} s; what is stated is from before."
        elif not whole.latency.total:
            errors = dict(whole.errors) or "no errors either"
            problem = f"nothing was answered in {len(slices) * SLICE_S:g} s: {errors}."
        breakdown: Breakdown | None = None
        before, after = readings
        if before is not None and after is not None and whole.latency.total:
            breakdown = self.statistics.breakdown(
                before, after, num_requests=whole.num_answered, latency_ms=mean_ms, client_ms=cost.latency_ms
            )
        return LoadResult.from_slices(
            load,
            slices,
            is_stable=windows.is_stable,
            server=self.meter.result(),
            breakdown=breakdown,
            problem=problem,
            is_refused=bool(refusal),
            is_cut_short=bool(outcome.failure),
        )


def _schedule(load: Load, config: LoadConfig) -> tuple[Times | None, float]:
    """When requests are due from the beginning of the warm-up, and the longest time that is measured."""
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
    """What one of several processes has in flight."""
    return None if concurrency is None else concurrency // of + (number < concurrency % of)
