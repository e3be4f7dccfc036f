"""Configuration of a load test."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankline.serving.loadtest.generator.arrivals import Arrivals, ConstantArrivals, PoissonArrivals, TraceArrivals
from rankline.serving.loadtest.generator.transport import TRANSPORTS
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_choice

HELDOUT, GENERATED = "heldout", "generated"
INPUTS = (HELDOUT, GENERATED)
_SLO = re.compile(r"(?P<label>p\d+(?:\.\d+)?)\s*=\s*(?P<bound>\d+(?:\.\d+)?)\s*(?P<unit>us|ms|s)")
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, kw_only=True)
class Slo:
    """A service-level objective: an upper bound on a latency percentile.

    Attributes:
        metric: name of the percentile in `METRICS`.
        level: level of the percentile, 0 to 1.
        bound_ms: the bound.
    """

    metric: str
    level: float
    bound_ms: float

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Parse a bound such as `p99=10ms`; the unit is us, ms or s.

        Raises:
            ConfigError: the text has another form.
        """
        match = _SLO.fullmatch(text.strip())
        percentiles = {
            metric.label: (metric.name, metric.level) for metric in METRICS.values() if metric.level is not None
        }
        if match is None or match["label"] not in percentiles or not float(match["bound"]):
            raise ConfigError(
                f"slo is {text!r}, expected a percentile ({', '.join(percentiles)}) and a time, such as p99=10ms."
            )
        name, level = percentiles[match["label"]]
        return cls(metric=name, level=level, bound_ms=float(match["bound"]) * _UNITS_MS[match["unit"]])


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """Options of a load test: the amount and kind of load, and how it is measured.

    Attributes:
        concurrency: number of requests in flight, one measurement per value. Cannot be combined with a rate or an SLO.
        rate: requests per second, one measurement per value: an open loop, whose latency counts from the scheduled
            time.
        arrivals: spacing of requests at a rate: constant, poisson, or a file of times in seconds, which determines the
            rate.
        slo: latency target such as p99=10ms; searches for the highest rate that meets it.
        processes: number of client processes that share the load.
        transport: how requests are sent: http2 uses the least client CPU, grpcio is what a Python program uses.
        warmup_s: duration of the warm-up before each measurement.
        min_requests: minimum number of responses in a measurement.
        min_duration_s: minimum duration of a measurement.
        stability: a measurement continues until throughput and median latency of three consecutive windows differ by at
            most this fraction.
        time_limit_s: maximum duration of a measurement; the report says if latency did not stabilize by then.
        window_s: length of a window.
        timeout_s: maximum time to wait for a response.
        inputs: "heldout" draws held-out rows; "generated" combines random values of each column, a few of them unseen
            or missing.
        skew: exponent of the Zipf distribution of rows, or of the values in generated rows; 0 for a uniform
            distribution. By default, 0 for held-out rows and 1 for generated rows.
        seed: random seed of the drawn rows and of Poisson arrivals.
        tolerance: maximum accepted difference from an expected score.
        check_every: compare every Nth response with the expected scores; 1 compares all.
    """

    concurrency: tuple[int, ...] = (1,)
    rate: tuple[int, ...] = ()
    arrivals: str = "poisson"
    slo: str | None = None
    processes: int = 1
    transport: str = "http2"
    warmup_s: float = 0.5
    min_requests: int = 500
    min_duration_s: float = 3.0
    stability: float = 0.1
    time_limit_s: float = 10.0
    window_s: float = 1.0
    timeout_s: float = 10.0
    inputs: str = HELDOUT
    skew: float | None = None
    seed: int = 0
    tolerance: float = 1e-5
    check_every: int = 8

    def __post_init__(self) -> None:
        for name in ("min_requests", "check_every", "processes", "window_s", "timeout_s", "min_duration_s"):
            check_choice(self, name, getattr(self, name) > 0, "more than 0")
        for name in ("warmup_s", "stability", "skew", "tolerance"):
            check_choice(self, name, (getattr(self, name) or 0) >= 0, "at least 0")
        for name in ("concurrency", "rate"):
            if any(value < 1 for value in getattr(self, name)):
                raise ConfigError(f"{name} is {list(getattr(self, name))}, expected positive integers.")
        if self.time_limit_s < self.min_duration_s:
            raise ConfigError(
                f"time_limit_s is {self.time_limit_s:g}, expected at least min_duration_s ({self.min_duration_s:g})."
            )
        for name, known in (("transport", TRANSPORTS), ("inputs", INPUTS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"unknown {name} {getattr(self, name)!r}. Available: {', '.join(known)}.")
        if self.slo is not None:
            Slo.parse(self.slo)
            if self.rate:
                raise ConfigError(
                    "a rate and an slo cannot be combined, since the slo searches for the rate. Pass one of them."
                )
        if self.is_trace and not (file := Path(self.arrivals)).exists() and self.arrivals == file.stem:
            raise ConfigError(f"arrivals is {self.arrivals!r}, expected constant, poisson or a file of arrival times.")
        if self.arrivals == "constant" and not (self.rate or self.slo):
            raise ConfigError("arrivals require a rate or an slo. Pass --rate.")
        if not (self.rate or self.slo or self.concurrency or self.is_trace):
            raise ConfigError("no load is specified. Pass a concurrency, a rate, an slo or a file of arrivals.")
        if not self.is_closed_loop and self.concurrency != LoadConfig.concurrency:
            raise ConfigError(
                f"concurrency is {list(self.concurrency)}, but a rate, slo or file of arrivals determines how many "
                "requests are in flight. Pass only one of these."
            )
        if self.is_trace and (self.rate or self.slo):
            raise ConfigError(f"the file {self.arrivals} already sets the rate. Omit the rate and the slo.")

    @property
    def row_skew(self) -> float:
        """The Zipf exponent for sampling rows. It is 0 for generated rows, whose values are already skewed."""
        return 0.0 if self.inputs == GENERATED else self.skew or 0.0

    @property
    def value_skew(self) -> float:
        return 1.0 if self.skew is None else self.skew

    @property
    def is_trace(self) -> bool:
        return self.arrivals not in ("constant", "poisson")

    @property
    def is_closed_loop(self) -> bool:
        return not (self.rate or self.slo or self.is_trace)

    def loads(self, batch_sizes: Sequence[int]) -> Iterator[Load]:
        """Yield the loads that a benchmark measures, if it does not search for rates."""
        rates = [self.arrivals_at(0).rate_per_s] if self.is_trace else self.rate
        for batch_size in batch_sizes:
            if rates:
                for rate_per_s in rates:
                    yield Load(batch_size=batch_size, rate_per_s=rate_per_s, arrivals=self.arrivals)
            else:
                for concurrency in self.concurrency:
                    yield Load(batch_size=batch_size, concurrency=concurrency)

    def arrivals_at(self, rate_per_s: float) -> Arrivals:
        """Return the request schedule for a rate. A trace has its own timing and ignores the rate.

        Raises:
            DataError: the trace cannot be read.
        """
        if self.arrivals == "constant":
            return ConstantArrivals(rate_per_s=rate_per_s)
        if self.arrivals == "poisson":
            return PoissonArrivals(rate_per_s=rate_per_s, seed=self.seed)
        return TraceArrivals.read(Path(self.arrivals))
