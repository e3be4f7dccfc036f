"""A load, the counts of its run, and whether the client rather than the server was measured."""

from dataclasses import dataclass
from functools import cached_property

from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord

_NS_PER_MS = 1e6
_BUSY = 0.9  # of a core; above it a process sends when it can, not when it is to
_LAG_SHARE = 0.25
_LAG_MS = 1.0  # less is the kernel's doing


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was asked of the server.

    Attributes:
        batch_size: rows in each request.
        concurrency: requests in flight in a closed loop; None in an open one.
        rate_per_s: requests per second that an open loop offered; None in a closed one.
        arrivals: constant, poisson, or the file of the schedule; None in a closed loop.
    """

    batch_size: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: str | None = None

    @property
    def name(self) -> str:
        """Name in paths and metrics: rows_16, rows_16/concurrency_8, rows_16/rate_500."""
        rows = f"rows_{self.batch_size}"
        if self.rate_per_s is not None:
            return f"{rows}/rate_{self.rate_per_s:.0f}"
        return rows if self.concurrency == 1 else f"{rows}/concurrency_{self.concurrency}"

    @property
    def series(self) -> str:
        """Prefix of a curve over the rows of a request: nothing, concurrency_8/, rate_500/."""
        return "".join(f"{part}/" for part in self.name.split("/")[1:])

    @property
    def words(self) -> str:
        """Display name: rows 16, concurrency 8."""
        return self.name.replace("_", " ").replace("/", ", ")


@dataclass(frozen=True, kw_only=True)
class ClientCost:
    """The client's cost of a request.

    Attributes:
        cpu_ms: processor time for one request.
        busiest: share of a core that the busiest client process used.
        send_ms: from when a request was taken up until it was handed to the operating system.
        lag_mean_ms: how late requests were taken up in the mean; None in a closed loop.
        held_mean_ms: of this, what the server is to blame for: as many requests as may be were waiting for it.
    """

    cpu_ms: float
    busiest: float
    send_ms: float
    lag_mean_ms: float | None
    held_mean_ms: float

    @property
    def latency_ms(self) -> float:
        """The client's share of a request's latency."""
        return self.send_ms + (self.lag_mean_ms or 0.0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement, as it was counted. In an open loop latency counts from the scheduled time, else from sending.

    Attributes:
        load: what was asked.
        slices: what was counted in consecutive parts of the run, at least one, the warm-up excluded.
    """

    load: Load
    slices: tuple[SliceRecord, ...]

    @cached_property
    def whole(self) -> SliceRecord:
        return SliceRecord.merged(self.slices)

    @property
    def duration_s(self) -> float:
        return len(self.slices) * SLICE_S

    @cached_property
    def client_cost(self) -> ClientCost:
        whole = self.whole
        return ClientCost(
            cpu_ms=sum(whole.cpu_ns.values()) / max(whole.num_answered, 1) / _NS_PER_MS,
            busiest=max(whole.cpu_ns.values(), default=0) / (self.duration_s * 1e9),
            send_ms=whole.send_ns / max(whole.num_due, 1) / _NS_PER_MS,
            lag_mean_ms=whole.lag.mean_ns / _NS_PER_MS if whole.lag.total else None,
            held_mean_ms=whole.held_ns / max(whole.lag.total, 1) / _NS_PER_MS,
        )


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The same client against a model that returns its input, native where the machine has native backends.

    Attributes:
        concurrency: requests in flight.
        requests_per_s: that were answered.
        p50_ms: median latency.
        client_cpu_ms: the client's processor time for one request.
    """

    concurrency: int
    requests_per_s: float
    p50_ms: float | None
    client_cpu_ms: float


def bottleneck(cost: ClientCost, mean_ms: float, num_processes: int) -> str:
    """Why the client rather than the server was measured; empty if it was not."""
    if cost.busiest > _BUSY:
        return (
            f"the client was the bottleneck: one of its processes used {cost.busiest:.0%} of a core. "
            f"Raise --processes above {num_processes}, or run the client on another machine."
        )
    late_ms = (cost.lag_mean_ms or 0.0) - cost.held_mean_ms
    if late_ms > max(_LAG_MS, _LAG_SHARE * mean_ms):
        return (
            f"the client was the bottleneck: requests were sent {late_ms:.1f} ms late on average, "
            f"at a mean latency of {mean_ms:.1f} ms. "
            f"Raise --processes above {num_processes}, lower the rate, or run the client on another machine."
        )
    return ""
