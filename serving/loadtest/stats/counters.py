"""Counts of the client processes, slice by slice of the run."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankline.serving.loadtest.stats.histogram import LatencyHistogram

SLICE_S = 0.25
"""Length of the parts that a run is cut into. Windows and confidence intervals are made of them."""


@dataclass(kw_only=True)
class SliceRecord:
    """One slice of a run. Requests belong to the slice in which they were due, answers to the one they arrived in.

    Attributes:
        latency: of the requests that were due and answered without an error. In an open loop it counts from the
            scheduled time, in a closed loop from sending.
        lag: how long after its scheduled time each request was sent; empty in a closed loop.
        held_ns: of the lag, added up, what passed while as many were in flight as may be.
        num_due: requests that were scheduled, or that a closed loop sent.
        num_unsent: requests that were scheduled and could not be sent before the run ended.
        num_repeated: requests whose rows had been sent before, because all that were laid out had been.
        errors: gRPC status → requests that ended with it.
        send_ns: from when each request was taken up until it was handed to the operating system, added up.
        num_answered: answers without an error that came in.
        cpu_ns: number of the client process → processor time that it used.
        samples: (number of the request, answer) of some requests, to be compared with what is expected.
    """

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    held_ns: int = 0
    num_due: int = 0
    num_unsent: int = 0
    num_repeated: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    send_ns: int = 0
    num_answered: int = 0
    cpu_ns: Counter[int] = field(default_factory=Counter)
    samples: list[tuple[int, bytes]] = field(default_factory=list)

    def merge(self, other: "SliceRecord") -> None:
        """Add the counts of another process, or later ones of the same. Samples stay with their reader."""
        self.latency.merge(other.latency)
        self.lag.merge(other.lag)
        self.held_ns += other.held_ns
        self.num_due += other.num_due
        self.num_unsent += other.num_unsent
        self.num_repeated += other.num_repeated
        self.errors.update(other.errors)
        self.send_ns += other.send_ns
        self.num_answered += other.num_answered
        self.cpu_ns.update(other.cpu_ns)

    @classmethod
    def merged(cls, records: "Iterable[SliceRecord]") -> "SliceRecord":
        whole = cls()
        for record in records:
            whole.merge(record)
        return whole
