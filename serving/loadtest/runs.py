"""Loads, run counts and search results, and the check for whether the client was the bottleneck."""

from dataclasses import dataclass
from functools import cached_property

from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord

_NS_PER_MS = 1e6
_BUSY = 0.9  # fraction of a core above which a process cannot send on time
_LAG_SHARE = 0.25
_LAG_MS = 1.0  # shorter delays are caused by the kernel


def rows_in_words(batch_size: int) -> str:
    return "1 row" if batch_size == 1 else f"{batch_size:,} rows"


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load offered to the server.

    Attributes:
        batch_size: rows per request.
        concurrency: number of requests in flight in a closed loop; None in an open loop.
        rate_per_s: requests per second in an open loop; None in a closed loop.
        arrivals: constant, poisson, or the file of the schedule; None in a closed loop.
    """

    batch_size: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    arrivals: str | None = None

    @property
    def name(self) -> str:
        """Name for paths and metrics, such as rows_16, rows_16/concurrency_8 or rows_16/rate_500."""
        rows = f"rows_{self.batch_size}"
        if self.rate_per_s is not None:
            return f"{rows}/rate_{self.rate_per_s:.0f}"
        return rows if self.concurrency == 1 else f"{rows}/concurrency_{self.concurrency}"

    @property
    def series(self) -> str:
        """The metric name prefix shared by loads that differ only in batch size, such as concurrency_8/ or rate_500/,
        or an empty string.
        """
        return "".join(f"{part}/" for part in self.name.split("/")[1:])

    @property
    def words(self) -> str:
        """Display name, such as “16 rows, 8 in flight” or “1 row at 200 requests/s”."""
        rows = rows_in_words(self.batch_size)
        if self.rate_per_s is not None:
            return f"{rows} at {self.rate_per_s:,.0f} requests/s"
        return rows if self.concurrency == 1 else f"{rows}, {self.concurrency} in flight"


@dataclass(frozen=True, kw_only=True)
class ClientCost:
    """The client's cost per request.

    Attributes:
        busiest: fraction of a core used by the busiest client process.
        send_ms: time from taking a request up until it is passed to the operating system.
        lag_mean_ms: mean delay in taking up requests; None in a closed loop.
        held_mean_ms: part of this delay caused by the server, while the maximum number of requests was in flight.
    """

    cpu_ms: float
    busiest: float
    send_ms: float
    lag_mean_ms: float | None
    held_mean_ms: float

    @property
    def latency_ms(self) -> float:
        return self.send_ms + (self.lag_mean_ms or 0.0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Counts of one measurement, excluding the warm-up, in one or more time slices.

    In an open loop, latency counts from the scheduled time, otherwise from sending.
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
    """Baseline measurement of the client against a model that returns its input, using a native backend if available.

    Attributes:
        concurrency: number of requests in flight.
        requests_per_s: answered requests per second.
        p50_ms: median latency.
        client_cpu_ms: CPU time of the client per request.
    """

    concurrency: int
    requests_per_s: float
    p50_ms: float | None
    client_cpu_ms: float


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search for the highest rate that meets the latency target.

    Attributes:
        rate_per_s: highest rate that met the target each time; None if not even the lowest rate did.
        failed_per_s: lowest tested rate that missed the target; None if all met it.
        num_probes: number of tests, including repetitions.
        ended: why the search ended early, without confirming the result; empty if it did not.
    """

    rate_per_s: float | None
    failed_per_s: float | None
    num_probes: int
    ended: str = ""


def bottleneck(cost: ClientCost, mean_ms: float, num_processes: int) -> str:
    """Return why the client was the bottleneck, or an empty string if it was not."""
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
