"""Metrics measured during a load test, each of which is defined in `METRICS`.

JSON, CSV, page, terminal, charts, comparison, latency targets and MLflow all use this table, and contain no metric
names of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rankline.serving.loadtest.runs import Run
from rankline.serving.loadtest.stats.counters import SLICE_S
from rankline.serving.loadtest.stats.percentiles import Estimate, mean_interval, percentile

OPEN, CLOSED = "open", "closed"
_NS_PER_MS = 1e6


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric computed for each load level.

    Attributes:
        name: name in JSON, CSV and MLflow, such as p50_ms or rows_per_s. It ends with the unit. Metrics in ms are
            latencies: less is better, and they are not reported if the client was the bottleneck.
        measure: function that computes the metric.
        title: column heading with the unit; empty if tables omit the metric.
        loop: `OPEN` or `CLOSED` if only tables of that kind of loop show the metric.
        level: level of a percentile, 0 to 1.
        has_interval: whether the estimate has bounds, given enough samples.
        is_compared: whether comparisons of two reports include the metric.
    """

    name: str
    measure: Callable[[Run], Estimate]
    title: str = ""
    loop: str | None = None
    level: float | None = None
    has_interval: bool = False
    is_compared: bool = False

    @property
    def is_latency(self) -> bool:
        return self.name.endswith("_ms")

    @property
    def key(self) -> str:
        """Name without the unit, used as a key in JSON, such as p50."""
        return self.name.removesuffix("_ms")

    @property
    def label(self) -> str:
        """Display name without the unit, such as p99.9."""
        return self.title.removesuffix(" ms") or self.key

    @property
    def bound_names(self) -> tuple[str, str]:
        """CSV column names for the lower and upper bounds, such as p50_low_ms and p50_high_ms."""
        stem, _, unit = self.name.partition("_")
        return f"{stem}_low_{unit}", f"{stem}_high_{unit}"


def latency_percentile(level: float, *, is_compared: bool = False) -> Metric:
    """Return the metric for a latency percentile, such as p99.9 for a level of 0.999."""
    label = f"p{100 * level:g}"

    def measure(run: Run) -> Estimate:
        found = percentile([record.latency for record in run.slices], level)
        return Estimate(value=_ms(found.value), low=_ms(found.low), high=_ms(found.high), reason=found.reason)

    return Metric(
        name=f"{label.replace('.', '')}_ms",
        title=f"{label} ms",
        measure=measure,
        level=level,
        has_interval=True,
        is_compared=is_compared,
    )


def _latency(run: Run, value_ns: float) -> Estimate:
    return Estimate(value=_ms(value_ns) if run.whole.latency.total else None)


def _rows_per_s(run: Run) -> Estimate:
    batch_size = run.load.batch_size
    low, high = mean_interval([record.num_answered * batch_size / SLICE_S for record in run.slices]) or (None, None)
    return Estimate(value=run.whole.num_answered * batch_size / run.duration_s, low=low, high=high)


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="mean_ms", measure=lambda run: _latency(run, run.whole.latency.mean_ns)),
        latency_percentile(0.5, is_compared=True),
        latency_percentile(0.9),
        latency_percentile(0.95),
        latency_percentile(0.99, is_compared=True),
        latency_percentile(0.999),
        Metric(name="max_ms", title="max ms", measure=lambda run: _latency(run, run.whole.latency.max_ns)),
        Metric(
            name="requests_per_s",
            title="answered/s",
            measure=lambda run: Estimate(value=run.whole.num_answered / run.duration_s),
            loop=OPEN,
        ),
        Metric(
            name="rows_per_s", title="rows/s", measure=_rows_per_s, loop=CLOSED, has_interval=True, is_compared=True
        ),
    )
}
"""Name → metric, in the column order of tables."""


def measure_all(run: Run, refusal: str = "") -> dict[str, Estimate]:
    """Return all metrics of a run, keyed by name. If `refusal` is given, latency metrics have no value, and `refusal`
    is the reason.
    """
    return {
        name: Estimate(reason=refusal) if refusal and metric.is_latency else metric.measure(run)
        for name, metric in METRICS.items()
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / _NS_PER_MS
