"""Compare two reports: the change in each figure, its uncertainty, and regressions beyond a limit.

The bounds of a ratio follow from the bounds of its two figures on a logarithmic scale (Zou and Donner, 2008,
doi:10.1002/sim.3095): for two independent runs, the squared distances to the relevant bounds add up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runs import Load, SearchResult, rows_in_words
from rankline.serving.loadtest.stats.metrics import METRICS
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.workflows.core.errors import ConfigError

_HOW = "command"  # key in the environment; the command line explains no difference


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The change in one figure between two reports. The figure is a metric, or `highest_requests_per_s` for a search.

    `change` is after / before - 1, between `low` and `high` (95 % confidence), which are None if a report has no bound.
    """

    load: str
    figure: str
    before: float
    after: float
    change: float
    low: float | None
    high: float | None

    @classmethod
    def between(cls, load: str, figure: str, before: Estimate, after: Estimate) -> "Difference":
        """Compare two estimates whose values are positive."""
        assert before.value
        assert after.value
        log = math.log(after.value / before.value)
        down, up = _distance(before.high, before.value), _distance(before.value, before.low)
        fall, rise = _distance(after.value, after.low), _distance(after.high, after.value)
        return cls(
            load=load,
            figure=figure,
            before=before.value,
            after=after.value,
            change=math.expm1(log),
            low=None if fall is None or down is None else math.expm1(log - math.hypot(fall, down)),
            high=None if rise is None or up is None else math.expm1(log + math.hypot(rise, up)),
        )

    @property
    def is_latency(self) -> bool:
        return self.figure.endswith("_ms")

    @property
    def title(self) -> str:
        """The figure and its load, such as "p50 ms, 1 row"."""
        return f"{_title(self.figure)}, {self.load}"

    @property
    def verdict(self) -> str:
        """Whether the figure became "better" or "worse", or "inconclusive" if its interval includes no change."""
        rises, falls = self.low is not None and self.low > 0, self.high is not None and self.high < 0
        if not rises and not falls:
            return "inconclusive"
        return "better" if falls == self.is_latency else "worse"

    def regressed(self, bound: float) -> bool:
        """Whether the entire confidence interval of the change is worse than `bound`."""
        if self.is_latency:
            return self.low is not None and self.low > bound
        return self.high is not None and self.high < -bound

    def may_have_regressed(self, bound: float) -> bool:
        """Whether the estimated change is worse than `bound`, but its confidence interval includes `bound`."""
        is_worse = self.change > bound if self.is_latency else self.change < -bound
        return is_worse and not self.regressed(bound)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between two benchmark reports.

    Attributes:
        not_reported: figures that are missing in one of the reports, and the reasons.
        remarks: other differences between the runs.
        max_regression: accepted regression of a figure, as a fraction.
    """

    differences: tuple[Difference, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    not_reported: tuple[str, ...]
    remarks: tuple[str, ...]
    max_regression: float

    @property
    def regressions(self) -> tuple[Difference, ...]:
        return tuple(found for found in self.differences if found.regressed(self.max_regression))

    @property
    def inconclusive(self) -> tuple[Difference, ...]:
        return tuple(found for found in self.differences if found.may_have_regressed(self.max_regression))


def compare(before: BenchmarkReport, after: BenchmarkReport, max_regression: float) -> Comparison:
    """Compare two reports of the same loads. For a search, only the highest rate is compared, not the tested rates.

    A `max_regression` of 0.1 accepts 10 % more latency, or 10 % fewer rows/s.

    Raises:
        ConfigError: the limit is negative, or the reports have no load in common.
    """
    if not max_regression >= 0:
        raise ConfigError(f"the maximum regression is {max_regression}, expected at least 0 (0.1 means 10%).")
    loads_before, loads_after = _loads(before), _loads(after)
    shared = [load for load in loads_after if load in loads_before]
    if not shared:
        raise ConfigError(
            f"the reports have no load in common. The loads are {_listed(loads_before)} in the first report and "
            f"{_listed(loads_after)} in the second report. Measure the same batch sizes, concurrency and rates."
        )
    differences, not_reported = [], []
    for load in shared:
        name, was, now = _name(load), loads_before[load], loads_after[load]
        for figure in was:
            old, new = was[figure], now[figure]
            if old.value and new.value:
                differences.append(Difference.between(name, figure, old, new))
            not_reported += [
                f"{_title(figure)}, {name}, {when}: {found.reason or 'no request was answered'}"
                for when, found in (("before", old), ("now", new))
                if not found.value
            ]
    return Comparison(
        differences=tuple(differences),
        only_before=tuple(_name(load) for load in loads_before if load not in loads_after),
        only_after=tuple(_name(load) for load in loads_after if load not in loads_before),
        not_reported=tuple(not_reported),
        remarks=tuple(_remarks(before, after)),
        max_regression=max_regression,
    )


def check_comparable(before: BenchmarkReport, batch_sizes: Sequence[int], config: LoadConfig) -> None:
    """Raise ConfigError if a benchmark would have no load in common with an earlier report."""
    earlier = _loads(before)
    own = [_search_name(size, config.slo) for size in batch_sizes] if config.slo else config.loads(batch_sizes)
    if not any(load in earlier for load in own):
        raise ConfigError(
            f"this benchmark has no load in common with the earlier report, whose loads are {_listed(earlier)}. "
            "Measure the same batch sizes, concurrency and rates."
        )


_Figures = dict[str, Estimate]


def _loads(report: BenchmarkReport) -> dict[Load | str, _Figures]:
    if report.searches:
        return {
            _search_name(batch_size, report.slo): {"highest_requests_per_s": _searched(search)}
            for batch_size, search in report.searches.items()
        }
    return {result.load: _measured(result) for result in report.bench}


def _search_name(batch_size: int, slo: str | None) -> str:
    return f"{rows_in_words(batch_size)}, {slo}"


def _measured(result: LoadResult) -> _Figures:
    compared = {name: result.metrics[name] for name, metric in METRICS.items() if metric.is_compared}
    return {name: replace(found, reason=found.reason or result.problem) for name, found in compared.items()}


def _searched(search: SearchResult) -> Estimate:
    if search.rate_per_s is None:
        return Estimate(reason="no tested rate met the target")
    return Estimate(value=search.rate_per_s, low=search.rate_per_s, high=search.failed_per_s)


def _distance(high: float | None, low: float | None) -> float | None:
    """Return the logarithm of the ratio of two figures, or None if one of them is missing or 0."""
    return math.log(high / low) if high and low else None


def _remarks(before: BenchmarkReport, after: BenchmarkReport) -> Iterator[str]:
    if before.model_name != after.model_name:
        yield f"model was {before.model_name}, is {after.model_name}"
    for key in sorted({*before.environment, *after.environment} - {_HOW}):
        was, now = before.environment.get(key, "unknown"), after.environment.get(key, "unknown")
        if was != now:
            yield f"{key} was {was}, is {now}"
    for when, report in (("before", before), ("now", after)):
        for problem in report.problems:
            yield f"{when}, {problem}"


def _name(load: Load | str) -> str:
    if isinstance(load, str):
        return load
    return f"{load.words} ({load.arrivals})" if load.arrivals else load.words


def _title(figure: str) -> str:
    return METRICS[figure].title if figure in METRICS else "highest requests/s"


def _listed(loads: dict[Load | str, _Figures]) -> str:
    return ", ".join(map(_name, loads)) or "none"
