"""Run client processes, each with its own connection, and add up their counts."""

import ctypes
import gc
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from rankline.serving.loadtest.generator.sender import Engine, Job
from rankline.serving.loadtest.generator.transport import INFER, TRANSPORTS, Transport
from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord
from rankline.workflows.core.errors import ConfigError, ServingError

_START_DELAY_NS = 20_000_000  # gives all processes time to read their jobs
_LOOK_INTERVAL_NS = 50_000_000
_STOP_TIMEOUT_S = 5
_PR_SET_TIMERSLACK = 29
STOPPED = "stopped by Ctrl-C"
"""Failure of a run that was stopped by Ctrl-C."""


def connect(name: str, url: str, path: str = INFER) -> Transport:
    """Open a connection with transport `name`: `http2` uses the least client CPU time; Python programs use `grpcio`."""
    if name == "http2":
        from rankline.serving.loadtest.generator.http2 import Http2Connection

        return Http2Connection(url, path)
    if name == "grpcio":
        from rankline.serving.loadtest.generator.grpcio import GrpcioConnection

        return GrpcioConnection(url, path)
    raise ConfigError(f"unknown transport {name!r}. Available: {', '.join(TRANSPORTS)}.")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts summed over all processes, excluding the warm-up.

    Attributes:
        samples: (process, message number, response).
        failure: why the run was cut short, by a connection failure or Ctrl-C; empty if it was not.
    """

    slices: tuple[SliceRecord, ...]
    samples: tuple[tuple[int, int, bytes], ...]
    failure: str


class Workers:
    """Processes that run jobs within a `with` block. They import no gRPC, Arrow or TensorFlow."""

    def __init__(self, num_processes: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks held by gRPC's and Arrow's threads
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), name=f"rankline-load-{number}", daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # a process ends when its pipe is closed
        for process in self._processes:
            process.join(_STOP_TIMEOUT_S if error is None else 0)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        on_begin: Callable[[], None] = lambda: None,
        is_enough: Callable[[Sequence[SliceRecord]], bool] = lambda _: False,
        on_end: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run one job on each of the first `len(jobs)` processes, and return their counts.

        Ctrl-C also ends the run: finished slices, if any, are returned, and the processes accept no further jobs.

        Args:
            on_begin: called when the warm-up is over.
            is_enough: called after each slice with all finished slices; the run ends when it returns True.
            on_end: called when no more requests are sent.

        Raises:
            ServingError: no server responds, or a process ended unexpectedly.
        """
        pipes = self._pipes[: len(jobs)]
        for pipe, job in zip(pipes, jobs, strict=True):
            _send(pipe, job)
        answers = [_next(pipe) for pipe in pipes]
        if errors := [answer for answer in answers if isinstance(answer, ServingError)]:
            for pipe, answer in zip(pipes, answers, strict=True):
                if not isinstance(answer, ServingError):
                    _send(pipe, None)
            raise errors[0]
        begin_ns = time.perf_counter_ns() + _START_DELAY_NS
        for pipe in pipes:
            _send(pipe, begin_ns)
        measure_s = begin_ns / 1e9 + jobs[0].warmup_s
        max_slices = round(jobs[0].time_limit_s / SLICE_S)
        return _Gathering(pipes, measure_s, on_begin, is_enough, on_end, max_slices).run()


class _Gathering:
    def __init__(
        self,
        pipes: Sequence[Connection],
        measure_s: float,
        on_begin: Callable[[], None],
        is_enough: Callable[[Sequence[SliceRecord]], bool],
        on_end: Callable[[], None],
        max_slices: int,
    ) -> None:
        self._pipes = list(pipes)
        self._measure_s, self._has_begun = measure_s, False  # end of the warm-up
        self._on_begin, self._is_enough, self._on_end = on_begin, is_enough, on_end
        self._max_slices = max_slices
        self._slices: dict[int, SliceRecord] = {}
        self._samples: list[tuple[int, int, bytes]] = []
        self._reached = [0] * len(pipes)
        self._over: list[SliceRecord] = []  # slices that all processes have finished
        self._num_slices: int | None = None
        self._failure = ""

    def run(self) -> Outcome:
        try:
            self._gather()
        except KeyboardInterrupt:  # the processes end when their pipes are closed
            num_over = self._num_over()
            if self._num_slices is not None or num_over < 1:
                raise
            self._num_slices, self._failure = num_over, STOPPED
            self._on_end()
        if self._num_slices is None:
            self._on_end()
        num_slices = self._num_slices
        if num_slices is None:  # later slices contain only late responses
            num_slices = min(max(self._slices, default=-1) + 1, self._max_slices)
        return Outcome(
            slices=tuple(self._slices.get(number, SliceRecord()) for number in range(num_slices)),
            samples=tuple(self._samples),
            failure=self._failure,
        )

    def _gather(self) -> None:
        running = set(self._pipes)
        while running:
            # Read pipes during the warm-up, too: they hold little data, and a process blocked on its pipe cannot send.
            for pipe in wait(list(running), None if self._has_begun else self._until_begin_s()):
                assert isinstance(pipe, Connection)
                message = _next(pipe)
                if isinstance(message, ServingError):
                    raise message
                if isinstance(message, str):
                    running.discard(pipe)
                    self._failure = self._failure or message
                else:
                    self._add(self._pipes.index(pipe), *message)
            if not self._has_begun and (not running or not self._until_begin_s()):
                self._has_begun = True
                self._on_begin()
            self._decide(running)

    def _num_over(self) -> int:
        return min(*self._reached, self._max_slices)  # later slices contain only late responses

    def _until_begin_s(self) -> float:
        return max(self._measure_s - time.perf_counter(), 0)

    def _add(self, process: int, records: dict[int, SliceRecord], reached: int) -> None:
        for number, record in records.items():
            self._samples += [(process, message, body) for message, body in record.samples]
            if number >= 0:
                self._slices.setdefault(number, SliceRecord()).merge(record)
        self._reached[process] = reached

    def _decide(self, running: set[Connection]) -> None:
        num_over = self._num_over()
        if self._num_slices is not None or not running or num_over <= len(self._over):
            return
        self._over += [self._slices.setdefault(number, SliceRecord()) for number in range(len(self._over), num_over)]
        if self._is_enough(self._over):
            self._num_slices = num_over
            self._on_end()
            for pipe in running:
                _send(pipe, num_over - 1)


def _send(pipe: Connection, message: Any) -> None:
    try:
        pipe.send(message)
    except ConnectionError:
        raise _ended() from None


def _next(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return _ended()


def _ended() -> ServingError:
    return ServingError("a process of the load generator exited unexpectedly. See its output above.")


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends us
    # By default the kernel may wake a sleeping process 50 µs late to save power, which would delay requests.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    try:
        while True:
            message = pipe.recv()
            if isinstance(message, Job):  # otherwise a late order to stop
                _run_job(pipe, message)
    except (EOFError, ConnectionError):
        return  # the parent has exited or closed the pipe


def _run_job(pipe: Connection, job: Job) -> None:
    try:
        transport = job.connect()
    except ServingError as error:
        pipe.send(error)
        return
    try:
        pipe.send("connected")
        begin_ns = pipe.recv()
        if begin_ns is None:  # another process failed to connect
            return
        gc.collect()
        gc.disable()  # a collection during the run would count as latency
        engine = Engine(
            job,
            transport,
            report=lambda records, reached: pipe.send((records, reached)),
            last_slice=_orders(pipe).__next__,
        )
        pipe.send(engine.run(begin_ns))
    finally:
        gc.enable()
        transport.close()


def _orders(pipe: Connection) -> Iterator[int | None]:
    """Yield the number of the last slice to run once the parent process has sent it, and None until then."""
    next_ns, last_slice = 0, None
    while True:
        now = time.perf_counter_ns()
        if last_slice is None and now > next_ns:
            next_ns = now + _LOOK_INTERVAL_NS
            if pipe.poll():
                last_slice = pipe.recv()
        yield last_slice
