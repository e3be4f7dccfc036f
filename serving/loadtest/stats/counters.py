"""Counts of the client processes, per slice of a run."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rankline.serving.loadtest.stats.histogram import LatencyHistogram

SLICE_S = 0.25
"""Length of a slice. Windows and confidence intervals are computed from slices."""


@dataclass(kw_only=True)
class SliceRecord:
    """One slice of a run. Requests are counted in the slice in which they are due, responses when they arrive.

    Attributes:
        latency: latencies of due requests answered without an error, from the scheduled time in an open loop and from
            sending in a closed loop.
        lag: delays of sending after the scheduled time; empty in a closed loop.
        held_ns: sum of the parts of the lag during which the maximum number of requests was in flight.
        num_due: requests that were scheduled, or sent by a closed loop.
        num_unsent: scheduled requests that could not be sent before the run ended.
        num_repeated: requests with rows sent before, because all prepared requests had been sent.
        errors: gRPC status → number of requests that failed with it.
        send_ns: sum of the times from taking a request up until it is passed to the operating system.
        num_answered: responses without an error that arrived.
        cpu_ns: number of the client process → its CPU time.
        samples: (request number, response) of some requests, for comparison with the expected scores.
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
        """Add the counts of another process, or later counts of the same process. Samples are not merged."""
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
