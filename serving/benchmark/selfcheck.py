"""Checks whether the client was the bottleneck, and what it costs."""

from dataclasses import dataclass

_BUSY = 0.9  # of a core; above it a process sends when it can, not when it is to
_LAG_SHARE = 0.25
_LAG_MS = 1.0  # less is the kernel's doing


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
