"""The send loop of a client process, which sends requests in a closed loop or on a schedule and counts responses.

In an open loop, latency counts from the time a request was due, whether it could be sent or not. A stalling server is
thus charged for all requests that wait in the meantime, as it would be by users; a closed loop would send nothing in
the meantime and not notice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankline.serving.loadtest.generator.arrivals import Times
from rankline.serving.loadtest.generator.transport import OK, Answer, Connect, Transport
from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord

SLICE_NS = int(SLICE_S * 1e9)
MAX_IN_FLIGHT = 4096
"""Maximum number of requests in flight per process of an open loop; further requests wait, which counts as latency."""
_MAX_WAIT_S = 0.1  # interval at which the engine checks whether to stop

Clock = Callable[[], int]
Report = Callable[[dict[int, SliceRecord], int], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The part of a load that one client process sends.

    Attributes:
        connect: function that opens the connection; must be picklable.
        messages: serialized requests, sent in rotation.
        warmup_s: duration of the warm-up, whose slices have negative numbers.
        time_limit_s: maximum duration of the run after the warm-up.
        sample_every: keep every Nth response for comparison, except for requests due in the warm-up.
        concurrency: number of requests in flight; None for an open loop.
        due_ns: [num_requests] for an open loop, times since the start of the warm-up.
    """

    process: int
    connect: Connect
    messages: Sequence[bytes]
    warmup_s: float
    time_limit_s: float
    timeout_s: float
    sample_every: int
    concurrency: int | None = None
    due_ns: Times | None = None


class Engine:
    """The loop that runs a job. Both clocks return nanoseconds. `clock` is shared with the transport and all processes;
    `cpu_clock` measures the CPU time of this process.

    `report` is called with the counts since the last call, and the number of the first unfinished slice. `last_slice`
    returns the number of the last slice to run, once it is known.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport,
        *,
        report: Report,
        last_slice: Callable[[], int | None],
        clock: Clock = time.perf_counter_ns,
        cpu_clock: Clock = time.process_time_ns,
    ) -> None:
        self._job, self._transport = job, transport
        self._on_slice, self._last_slice = report, last_slice
        self._clock, self._cpu_clock = clock, cpu_clock
        # Python's integers are faster than NumPy's when accessed one by one.
        self._due: list[int] | None = job.due_ns.tolist() if job.due_ns is not None else None
        self._limit = job.concurrency if job.concurrency is not None else MAX_IN_FLIGHT
        self._records: dict[int, SliceRecord] = {}
        self._in_flight: dict[int, tuple[int, int]] = {}  # request number → time due, time sent
        self._num_sent = 0
        self._num_answers = 0
        self._taken_up_ns = 0  # sum over the requests of one turn
        self._full_since_ns: int | None = None  # since when requests are due but too many are in flight

    def run(self, begin_ns: int) -> str:
        """Send requests until the time limit, the last slice's end or a connection failure, then await responses.

        Return why the connection failed before that; empty if it did not.
        """
        self._measure_ns = begin_ns + int(self._job.warmup_s * 1e9)
        self._end_ns = self._measure_ns + int(self._job.time_limit_s * 1e9)
        if self._due is not None:
            self._due = [begin_ns + due for due in self._due]
        self._slice, self._cpu_ns = self._slice_at(begin_ns), self._cpu_clock()
        while (now := self._clock()) < self._end_ns and not self._transport.failure:
            self._send(now)
            self._turn(self._wait_s())
        give_up_ns = self._end_ns + int(self._job.timeout_s * 1e9)
        while self._in_flight and (now := self._clock()) < give_up_ns:
            self._turn(min((give_up_ns - now) / 1e9, _MAX_WAIT_S))
        self._end()
        return self._transport.failure

    def _send(self, now: int) -> None:
        limit = min(self._limit, self._transport.capacity)
        before, self._taken_up_ns = self._num_sent, 0
        if self._due is None:
            while len(self._in_flight) < limit:
                now = self._clock()
                self._send_one(now, now)
        else:
            while self._num_sent < len(self._due):
                due = self._due[self._num_sent]
                if len(self._in_flight) >= limit:
                    self._full_since_ns = now if self._full_since_ns is None else self._full_since_ns
                    break
                if due > now and due > (now := self._clock()):
                    self._full_since_ns = None
                    break
                self._send_one(due, now)
        if count := self._num_sent - before:
            self._transport.flush()
            now = self._clock()
            self._record_at(now).send_ns += count * now - self._taken_up_ns

    def _send_one(self, due_ns: int, now: int) -> None:
        number, messages = self._num_sent, self._job.messages
        self._num_sent += 1
        self._taken_up_ns += now
        record = self._record_at(due_ns)
        record.num_due += 1
        record.num_repeated += number >= len(messages)
        self._in_flight[number] = due_ns, now
        self._transport.send(number, messages[number % len(messages)])
        if self._due is not None:
            record.lag.record(now - due_ns)
            if self._full_since_ns is not None:
                record.held_ns += now - max(due_ns, self._full_since_ns)

    def _wait_s(self) -> float:
        full = len(self._in_flight) >= min(self._limit, self._transport.capacity)
        if self._due is None or full or self._num_sent == len(self._due):
            return _MAX_WAIT_S
        return min((self._due[self._num_sent] - self._clock()) / 1e9, _MAX_WAIT_S)

    def _turn(self, wait_s: float) -> None:
        for answer in self._transport.poll(wait_s):
            self._count(answer)
        now = self._clock()
        timeout_ns = self._job.timeout_s * 1e9
        while self._in_flight:  # in sending order
            number, (due_ns, sent_ns) = next(iter(self._in_flight.items()))
            if now - sent_ns < timeout_ns:
                break
            del self._in_flight[number]
            self._transport.cancel(number)
            self._record_at(due_ns).errors["DEADLINE_EXCEEDED"] += 1
        if self._slice_at(now) > self._slice:
            self._report(now)
        last = self._last_slice()
        if last is not None:
            self._end_ns = min(self._end_ns, self._measure_ns + (last + 1) * SLICE_NS)

    def _count(self, answer: Answer) -> None:
        due_ns, _ = self._in_flight.pop(answer.key)
        record = self._record_at(due_ns)
        if answer.status != OK:
            record.errors[answer.status] += 1
            return
        record.latency.record(answer.at_ns - due_ns)
        self._record_at(answer.at_ns).num_answered += 1
        self._num_answers += 1
        if self._num_answers % self._job.sample_every == 0 and due_ns >= self._measure_ns:
            record.samples.append((answer.key % len(self._job.messages), answer.body))

    def _end(self) -> None:
        for number, (due_ns, _) in list(self._in_flight.items()):
            self._transport.cancel(number)
            self._record_at(due_ns).errors["DEADLINE_EXCEEDED"] += 1
        end_ns = min(self._end_ns, self._clock()) if self._transport.failure else self._end_ns
        for due_ns in self._due[self._num_sent :] if self._due is not None else []:
            if due_ns < end_ns:
                record = self._record_at(due_ns)
                record.num_due += 1
                record.num_unsent += 1
        self._report(self._clock())

    def _report(self, now: int) -> None:
        cpu_ns, self._cpu_ns = self._cpu_clock() - self._cpu_ns, self._cpu_clock()
        # Assign CPU time to the slice in which it began, since a delayed process may report after the last slice.
        self._records.setdefault(self._slice, SliceRecord()).cpu_ns[self._job.process] += cpu_ns
        records, self._records = self._records, {}
        self._slice = self._slice_at(now)
        self._on_slice(records, self._slice)

    def _slice_at(self, at_ns: int) -> int:
        return (at_ns - self._measure_ns) // SLICE_NS

    def _record_at(self, at_ns: int) -> SliceRecord:
        number = (at_ns - self._measure_ns) // SLICE_NS
        record = self._records.get(number)
        if record is None:
            record = self._records[number] = SliceRecord()
        return record
