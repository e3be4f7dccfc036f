"""Percentiles with distribution-free confidence intervals. Percentiles with too few samples are not reported.

The interval of a percentile lies between two order statistics. The number of independent samples below the true
percentile is binomial for any distribution of latency, which determines the two ranks (Conover, Practical Nonparametric
Statistics, 3.2). Latencies are not independent, since a slow moment delays many requests. Therefore the number of
samples above the percentile is compared between slices of the run, and the number of independent samples is reduced by
the ratio of its variance to that of a binomial (the overdispersion of a quasi-binomial model). Slow moments may also
outlast a slice: the number of independent slices is reduced by their autocorrelation, and Student's t accounts for the
uncertainty of a variance from few slices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rankline.serving.loadtest.stats.counters import LatencyHistogram

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_MIN_VALUES = 4  # minimum number of values for the interval of a mean
_MIN_INDEPENDENT = 3.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value estimated from a run, with its confidence bounds.

    Attributes:
        value: the figure; None if the run does not determine it.
        low, high: bounds with confidence `CONFIDENCE`; None if the samples do not determine them.
        reason: why there is no value; empty if there is one, or if nothing was answered.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def percentile(slices: Sequence[LatencyHistogram], level: float) -> Estimate:
    """Estimate a latency percentile of a run, in nanoseconds, from the histograms of its slices."""
    whole = LatencyHistogram.merged(slices)
    if whole.total < (needed := samples_needed(level)):
        return Estimate(reason=f"{whole.total:,} samples, at least {needed:,} required")
    value_ns = whole.at_rank(math.ceil(level * whole.total))
    num_independent = int(whole.total / _overdispersion(slices, value_ns, level))
    low, high = interval_ranks(num_independent, level)
    scale = whole.total / max(num_independent, 1)
    return Estimate(
        value=value_ns,
        low=min(whole.at_rank(max(math.floor(low * scale), 1)), value_ns) if low >= 1 else None,
        high=max(whole.at_rank(min(math.ceil(high * scale), whole.total)), value_ns)
        if high <= num_independent
        else None,
    )


def samples_needed(level: float) -> int:
    """Return the minimum number of samples needed for a two-sided confidence interval of the percentile at `level`."""
    return math.ceil(math.log(_TAIL) / math.log(max(level, 1 - level)))


def interval_ranks(num_samples: int, level: float) -> tuple[int, int]:
    """Return the 1-based ranks of the samples that bound a percentile. Ranks 0 and `num_samples` + 1 mean no bound."""
    from scipy.stats import binom  # takes a second

    # B samples are below the percentile. Sample r is above it if B < r, below it if B >= r.
    low, high = binom.ppf((_TAIL, 1 - _TAIL), num_samples, level)  # P(B < low) <= tail, P(B > high) <= tail
    return int(low), int(high) + 1


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's t confidence interval of the mean of a time series of rates, or None for fewer than four values.

    The number of independent values is reduced by the autocorrelation of neighbors (first-order autoregression).
    """
    if len(values) < _MIN_VALUES:
        return None
    mean = math.fsum(values) / len(values)
    off = np.asarray(values) - mean
    num_independent = _num_independent(off)
    half = _student_t(num_independent - 1) * math.sqrt(float(off @ off) / (len(values) - 1) / num_independent)
    return max(mean - half, 0.0), mean + half


def _num_independent(off: npt.NDArray[np.float64]) -> float:
    """Return the effective sample size of a series of deviations from the mean, given its lag-1 autocorrelation."""
    squares = float(off @ off)
    alike = max(float(off[1:] @ off[:-1]) / squares, 0.0) if squares else 0.0
    return max(len(off) * (1 - alike) / (1 + alike), min(_MIN_INDEPENDENT, len(off)))


def _student_t(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf(1 - _TAIL, freedom))


def _overdispersion(slices: Sequence[LatencyHistogram], value_ns: int, level: float) -> float:
    """Return the ratio of the variance of per-slice counts above the percentile to the binomial one, at least 1."""
    totals = np.asarray([histogram.total for histogram in slices])
    above = np.asarray([histogram.above(value_ns) for histogram in slices])
    totals, above = totals[totals > 0], above[totals > 0]
    count = len(totals)
    if count < 2:
        return 1.0
    off = above - totals * (above.sum() / totals.sum())  # from the actual fraction above, since values are rounded
    num_independent = _num_independent(off)
    variance = float(off @ off) * count / (count - 1) * count / num_independent
    unsure = (_student_t(num_independent - 1) / NormalDist().inv_cdf(1 - _TAIL)) ** 2
    return float(max(unsure * variance / (totals.sum() * level * (1 - level)), 1.0))
