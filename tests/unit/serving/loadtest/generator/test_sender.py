"""The engine in simulated time: a queue with one server, whose answers follow from arithmetic."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankline.serving.loadtest.generator.sender import SLICE_NS, Engine, Job
from rankline.serving.loadtest.generator.transport import OK, Answer
from rankline.serving.loadtest.stats.counters import SliceRecord

MS = 1_000_000
SERVICES = st.lists(st.integers(1, 400), min_size=1, max_size=30)


class Simulation:
    """A `Transport` to one server that takes requests in turn, and the clock of its world, in nanoseconds."""

    failure = ""

    def __init__(self, service_ms: Sequence[int], capacity: int = 10**6) -> None:
        self.now = 0
        self.capacity = capacity
        self.service_ms = service_ms
        self.num_sent = 0
        self.free_at = 0
        self.waiting: deque[tuple[int, int]] = deque()

    def clock(self) -> int:
        return self.now

    def send(self, key: int, message: bytes) -> None:
        self.free_at = max(self.free_at, self.now) + self.service_ms[self.num_sent % len(self.service_ms)] * MS
        self.num_sent += 1
        self.waiting.append((key, self.free_at))

    def flush(self) -> None:
        """Nothing is held back."""

    def poll(self, timeout_s: float) -> list[Answer]:
        until = self.now + max(round(timeout_s * 1e9), 1)
        if self.waiting and self.waiting[0][1] <= until:
            key, self.now = self.waiting.popleft()
            return [Answer(key, self.now, OK, b"")]
        self.now = until
        return []

    def cancel(self, key: int) -> None:
        self.waiting = deque(entry for entry in self.waiting if entry[0] != key)

    def close(self) -> None:
        """Nothing to close."""


def run(simulation: Simulation, job: Job) -> dict[int, SliceRecord]:
    slices: dict[int, SliceRecord] = {}

    def report(records: dict[int, SliceRecord], reached: int) -> None:
        for number, record in records.items():
            slices.setdefault(number, SliceRecord()).merge(record)
            slices[number].samples += record.samples

    engine = Engine(
        job, simulation, report=report, last_slice=lambda: None, clock=simulation.clock, cpu_clock=simulation.clock
    )
    assert engine.run(0) == ""
    return slices


def job(due_ms: Sequence[int] | None = None, **changes: object) -> Job:
    settings: dict[str, object] = {
        "process": 0, "connect": lambda: Simulation([1]), "messages": [b"a", b"b", b"c"], "warmup_s": 0.0,
        "time_limit_s": 2.0, "timeout_s": 1e6, "sample_every": 1,
        "due_ns": None if due_ms is None else np.asarray(due_ms, np.int64) * MS,
    }  # fmt: skip
    return Job(**{**settings, **changes})  # type: ignore[arg-type]


def merged(slices: dict[int, SliceRecord]) -> SliceRecord:
    return SliceRecord.merged(slices.values())


UNBOUNDED = 10**6


@given(
    due_ms=st.lists(st.integers(0, 1999), max_size=60).map(sorted),
    service_ms=SERVICES,
    capacity=st.integers(1, 3) | st.just(UNBOUNDED),
)
def test_open_loop_latency_counts_from_the_schedule(due_ms: list[int], service_ms: list[int], capacity: int) -> None:
    """Also what a request waits for a full server."""
    whole = merged(run(Simulation(service_ms, capacity), job(due_ms)))
    assert whole.num_due == len(due_ms)
    assert whole.num_answered + whole.num_unsent == len(due_ms)  # none is skipped
    assert abs(whole.held_ns - whole.lag.mean_ns * whole.lag.total) <= 0.002 * whole.held_ns + 100  # no wait is ours
    if capacity == UNBOUNDED:
        assert whole.lag.max_ns == whole.held_ns == whole.num_unsent == 0
    right, free = SliceRecord(), 0
    for number, due in enumerate(due_ms[: whole.num_answered]):  # Lindley's recursion
        free = max(free, due) + service_ms[number % len(service_ms)]
        right.latency.record((free - due) * MS)
    assert whole.latency == right.latency


@given(service_ms=SERVICES, concurrency=st.integers(1, 5))
def test_closed_loop_keeps_its_number_in_flight(service_ms: list[int], concurrency: int) -> None:
    simulation = Simulation(service_ms)
    slices = run(simulation, job(concurrency=concurrency))
    whole = merged(slices)
    assert whole.num_due == whole.latency.total == simulation.num_sent
    assert whole.lag.total == 0
    if len(set(service_ms)) == 1 and whole.num_due > 2 * concurrency:
        assert abs(whole.latency.max_ns / MS - concurrency * service_ms[0]) <= 0.001 * whole.latency.max_ns / MS


def test_warm_up_is_before_slice_zero() -> None:
    slices = run(Simulation([1]), job(range(0, 1000, 10), warmup_s=0.5, time_limit_s=0.5))
    assert {number: record.num_due for number, record in slices.items() if record.num_due} == {
        -2: 25,
        -1: 25,
        0: 25,
        1: 25,
    }
    assert SLICE_NS == 250 * MS
    assert {number: len(record.samples) for number, record in slices.items() if record.samples} == {0: 25, 1: 25}


def test_answer_counts_when_it_came_and_latency_when_it_was_due() -> None:
    slices = run(Simulation([600]), job([0]))
    assert {number: record.latency.total for number, record in slices.items() if record.latency.total} == {0: 1}
    assert {number: record.num_answered for number, record in slices.items() if record.num_answered} == {2: 1}


def test_late_requests_are_given_up_and_counted() -> None:
    whole = merged(run(Simulation([10, 10, 500, 10]), job(range(0, 400, 100), timeout_s=0.2)))
    assert whole.errors == {"DEADLINE_EXCEEDED": 2}  # the slow one and the one behind it
    assert whole.num_answered == 2
