"""A load, and the counts of its run."""

from dataclasses import dataclass
from functools import cached_property

from serving.benchmark.records import SLICE_S, SliceRecord
from serving.benchmark.selfcheck import ClientCost

_NS_PER_MS = 1e6


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
