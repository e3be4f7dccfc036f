"""Latencies as an HDR histogram: three significant digits from a nanosecond to an hour.

Buckets and files are those of HdrHistogram (hdrhistogram.org), so the files open in its plotter and in other load
generators. Only nonempty buckets are stored, since a run has a histogram for every quarter of a second.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

_MAX_NS = 3600 * 10**9
_SIGNIFICANT_DIGITS = 3
_STEP_BITS = 10  # 1,024 buckets per power of two, the first power of two above 10**digits


class LatencyHistogram:
    """Counts of nanoseconds. Values read from the histogram are at most 0.1 % above the recorded values."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # bucket → count
        self.total = 0
        """Number of recorded values."""

    def record(self, value_ns: int, count: int = 1) -> None:
        """Count a value; negative values count as 0, and values above an hour as an hour."""
        value_ns = min(max(value_ns, 0), _MAX_NS)
        octave = max(value_ns.bit_length() - _STEP_BITS - 1, 0)
        bucket = (octave << _STEP_BITS) + (value_ns >> octave)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += count

    def merge(self, other: "LatencyHistogram") -> None:
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += other.total

    @property
    def max_ns(self) -> int:
        """The largest value; 0 if there are none."""
        return self.at_rank(self.total) if self.total else 0

    @property
    def mean_ns(self) -> float:
        """The mean; 0 if there are no values."""
        if not self.total:
            return 0.0
        lows, highs, counts = self._buckets()
        return float((lows + highs) / 2 @ counts / self.total)

    def at_rank(self, rank: int) -> int:
        """Return the value of the `rank`-th smallest sample, counted from 1."""
        values, counts = self.counts()
        return int(values[np.searchsorted(np.cumsum(counts), rank)])

    def above(self, value_ns: int) -> int:
        """Return the number of values above a value that was read from a histogram."""
        values, counts = self.counts()
        return int(counts[values > value_ns].sum())

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return distinct values in ascending order, and the count of each."""
        _, highs, counts = self._buckets()
        return highs, counts

    def encode(self) -> bytes:
        """Return HdrHistogram's compressed V2 format in base64."""
        whole = HdrHistogram(1, _MAX_NS, _SIGNIFICANT_DIGITS)
        for value, count in zip(*(column.tolist() for column in self.counts()), strict=True):
            whole.record_value(value, count)
        return bytes(whole.encode())

    @classmethod
    def decode(cls, encoded: bytes) -> "LatencyHistogram":
        histogram, whole = cls(), HdrHistogram.decode(encoded)
        counts = np.ctypeslib.as_array(whole.counts)
        for index in np.flatnonzero(counts).tolist():
            histogram.record(int(whole.get_value_from_index(index)), int(counts[index]))
        return histogram

    @classmethod
    def merged(cls, histograms: "Iterable[LatencyHistogram]") -> "LatencyHistogram":
        whole = cls()
        for histogram in histograms:
            whole.merge(histogram)
        return whole

    def to_log(self, comments: Iterable[str], duration_s: float) -> str:
        """Return the text of a `.hdr` file: HdrHistogram's interval log with one interval."""
        head = [f"#[{comment}]" for comment in comments]
        names = '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'
        line = f"0.000,{duration_s:.3f},{self.max_ns / 1e6:.3f},{self.encode().decode()}"
        return "\n".join([*head, "#[Histogram log format version 1.3]", names, line]) + "\n"

    def __eq__(self, other: Any) -> bool:
        return self._counts == other._counts if isinstance(other, LatencyHistogram) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _buckets(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return lowest value, highest value and count of each nonempty bucket, in ascending order."""
        numbers = np.asarray(sorted(self._counts), np.int64)
        octaves = np.maximum((numbers >> _STEP_BITS) - 1, 0)
        steps = numbers - (octaves << _STEP_BITS)
        counts = np.asarray([self._counts[number] for number in numbers.tolist()], np.int64)
        return steps << octaves, ((steps + 1) << octaves) - 1, counts
