"""Latencies as an HDR histogram: three significant digits from a nanosecond to an hour, the same size however many.

The format is HdrHistogram's (hdrhistogram.org), so that files of ours open in its plotter and in other load generators.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

_LONGEST_NS = 3600 * 10**9
_SIGNIFICANT_DIGITS = 3


class LatencyHistogram:
    """Counts of nanoseconds. Every figure that is read from it is at most 0.1 % above the recorded one."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LONGEST_NS, _SIGNIFICANT_DIGITS)
        self._record = self._counts.record_value

    def record(self, value_ns: int) -> None:
        """Count one; what is below 0 or above an hour is taken for 0 or an hour."""
        self._record(min(max(value_ns, 0), _LONGEST_NS))

    def merge(self, other: "LatencyHistogram") -> None:
        """Add what another one counted."""
        if other.total:
            self._counts.add(other._counts)

    @property
    def total(self) -> int:
        """How many were recorded."""
        return int(self._counts.get_total_count())

    @property
    def max_ns(self) -> int:
        """The largest; 0 when there is none."""
        return int(self._counts.get_max_value())

    @property
    def mean_ns(self) -> float:
        """Their mean; 0 when there is none."""
        return float(self._counts.get_mean_value())

    def at_rank(self, rank: int) -> int:
        """The value of the `rank`-th smallest sample, counted from 1."""
        values, counts = self.counts()
        return int(values[np.searchsorted(np.cumsum(counts), rank)])

    def above(self, value_ns: int) -> int:
        """How many are larger than a value that was read from a histogram."""
        values, counts = self.counts()
        return int(counts[values > value_ns].sum())

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Distinct values in ascending order, and how often each was recorded."""
        counts = np.ctypeslib.as_array(self._counts.counts).astype(np.int64)
        found = np.flatnonzero(counts)
        top = [self._counts.get_highest_equivalent_value(self._counts.get_value_from_index(int(i))) for i in found]
        return np.asarray(top, np.int64), counts[found]

    def encode(self) -> bytes:
        """HdrHistogram's compressed V2 form in base 64."""
        return bytes(self._counts.encode())

    @classmethod
    def decode(cls, encoded: bytes) -> "LatencyHistogram":
        """The histogram that `encode` wrote."""
        histogram = cls()
        histogram._counts.add(HdrHistogram.decode(encoded))
        return histogram

    @classmethod
    def merged(cls, histograms: "Iterable[LatencyHistogram]") -> "LatencyHistogram":
        """All of them in one."""
        whole = cls()
        for histogram in histograms:
            whole.merge(histogram)
        return whole

    def to_log(self, comments: Iterable[str], duration_s: float) -> str:
        """The text of a `.hdr` file: HdrHistogram's interval log with one interval.

        Args:
            comments: lines about the run.
            duration_s: length of the interval.
        """
        head = [f"#[{comment}]" for comment in comments]
        names = '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'
        line = f"0.000,{duration_s:.3f},{self.max_ns / 1e6:.3f},{self.encode().decode()}"
        return "\n".join([*head, "#[Histogram log format version 1.3]", names, line]) + "\n"

    def __getstate__(self) -> bytes:
        return self.encode()

    def __setstate__(self, state: bytes) -> None:
        self.__init__()  # type: ignore[misc]
        self._counts.add(HdrHistogram.decode(state))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return all(np.array_equal(mine, its) for mine, its in zip(self.counts(), other.counts(), strict=True))

    __hash__ = None  # type: ignore[assignment]
