"""One measurement: encode requests, send them from the client processes, observe the server, and summarize."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tritonclient.grpc import service_pb2

from rankline.serving.client import Client
from rankline.serving.client.grpc import place_of
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.generator.arrivals import ConstantArrivals, Times, TraceArrivals, share
from rankline.serving.loadtest.generator.payloads import lay_out
from rankline.serving.loadtest.generator.sender import Job
from rankline.serving.loadtest.generator.worker_pool import Outcome, Workers, connect
from rankline.serving.loadtest.report.report import LoadResult
from rankline.serving.loadtest.runs import Load, Run, bottleneck
from rankline.serving.loadtest.server_breakdown import Breakdown, Reading, ResourceMeter, Statistics
from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord, Windows
from rankline.workflows.core.errors import ServerError, ServingError
from rankline.workflows.schema.tensors import Tensor, concat_outputs, relative_error

_CLOSED_LOOP_REQUESTS = 20_000


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A response, with the number of its request, the client process that sent the request, and the request's rows."""

    number: int
    process: int
    rows: npt.NDArray[np.int64]
    body: bytes


class ScoreCheck:
    """A comparison of responses with expected scores. It tracks the number of compared scores and the largest error.

    Args:
        expected: [num_rows], expected score of each row; None disables the comparison.
        tolerance: maximum accepted difference, relative for scores above 1.
        version: expected version of the ensemble; None for any.
    """

    def __init__(
        self,
        expected: npt.NDArray[Any] | None,
        outputs: Sequence[Tensor],
        tolerance: float,
        *,
        version: int | None = None,
    ) -> None:
        self._expected, self._outputs, self._tolerance = expected, outputs, tolerance
        self._version = version
        self.num_checked = 0
        self.max_abs_error = 0.0

    def compare(self, answers: Iterable[Answered]) -> None:
        """Raise ServingError if a score differs by more than the tolerance or a response belongs to another request."""
        if self._expected is None:
            return
        num_wrong, worst_error, worst = 0, -1.0, ""
        for answer in answers:
            response = service_pb2.ModelInferResponse.FromString(answer.body)
            self._check_whose(answer, response)
            scores, expected = self._scores(response, len(answer.rows)), self._expected[answer.rows].reshape(-1)
            if scores.size != expected.size:
                raise ServingError(f"a response under load has {scores.size} scores, expected {expected.size}.")
            errors = relative_error(scores, expected)
            self.num_checked += scores.size
            self.max_abs_error = max(self.max_abs_error, float(errors.max()))
            wrong = np.flatnonzero(~(errors <= self._tolerance))  # also true for NaN
            num_wrong += wrong.size
            for i in wrong:
                error = np.inf if np.isnan(errors[i]) else float(errors[i])
                if error > worst_error:
                    row = answer.rows[i * len(answer.rows) // scores.size] + 1
                    worst_error = error
                    worst = f"row {row} got {scores[i]:.6g}, expected {expected[i]:.6g}"
        if num_wrong:
            raise ServingError(
                f"{num_wrong:,} of {self.num_checked:,} scores compared under load are wrong. The largest error is "
                f"{worst_error:.3g} ({worst}), but the tolerance is {self._tolerance:g}. Export the ensemble again."
            )

    def _check_whose(self, answer: Answered, response: Any) -> None:
        if response.id != str(answer.number):
            raise ServingError(
                f"request {answer.number} of process {answer.process} got the response to request {response.id!r}. "
                "Report this to the operator of the server."
            )
        if self._version is not None and response.model_version != str(self._version):
            raise ServingError(
                f"version {response.model_version} of the model responded under load, expected version "
                f"{self._version}. Do not switch versions during the benchmark."
            )

    def _scores(self, response: Any, num_rows: int) -> npt.NDArray[Any]:
        contents = ((response.raw_output_contents[place_of(response, o.name)], o.numpy_dtype) for o in self._outputs)
        parts = [np.frombuffer(content, dtype) for content, dtype in contents]
        return (
            parts[0] if len(parts) == 1 else concat_outputs([part.reshape(num_rows, -1) for part in parts]).reshape(-1)
        )


class Bench:
    """A benchmark of one model, which measures one load at a time within a `with` block.

    Rows lose the columns that the model does not take. `process_ids` returns the ids of the server's processes, if it
    is on this machine.
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
        """Measure one load. Raise ServingError if no server responds, or a score differs from the expected one."""
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
        """Append the server's statistics to `readings`, or None if the server has just exited."""
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
            f"no request scheduled within these {run.duration_s:g} s was answered in time: all responses were to "
            "earlier requests. The load is more than client or server can handle. Lower the rate."
        )
    return f"no request was answered in {run.duration_s:g} s: {dict(run.whole.errors) or 'no errors occurred'}."


def _lateness(run: Run, config: LoadConfig) -> str:
    """Return a message about timed-out requests. It is empty in a search, which tries excessive rates on purpose."""
    num_late = run.whole.errors["DEADLINE_EXCEEDED"]
    if not num_late or config.slo is not None:
        return ""
    return (
        f"{num_late:,} requests got no response within {config.timeout_s:g} s: the server stalled, or the load is "
        "more than it can handle."
    )


def _schedule(load: Load, config: LoadConfig) -> tuple[Times | None, float]:
    """Return when each request is due after the start of the warm-up, and the time limit of the measurement in seconds.

    The first value is None for a closed loop.
    """
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
