"""Per-slice counts and latencies of the client processes, and the check for whether a run is stable.

The stability rule is perf_analyzer's, but earlier windows stay in the result, so that slow phases are not discarded.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

SLICE_S = 0.25
"""Length of a slice. Windows and confidence intervals are computed from slices."""

_MAX_NS = 3600 * 10**9
_SIGNIFICANT_DIGITS = 3
_STEP_BITS = 10  # 1,024 buckets per power of two, the first power of two above 10**digits


@dataclass
class LatencyHistogram:
    """An HDR histogram of latencies in nanoseconds, with three significant digits up to one hour.

    Buckets and files are those of HdrHistogram (hdrhistogram.org), so the files open in its plotter and in other load
    generators. Only nonempty buckets are stored, since a run has a histogram for every quarter of a second. Values read
    from it are at most 0.1 % above the recorded ones.
    """

    _counts: dict[int, int] = field(default_factory=dict, init=False)  # bucket → count
    total: int = field(default=0, init=False)
    """Number of recorded values."""

    def record(self, value_ns: int, count: int = 1) -> None:
        """Record `value_ns` `count` times, clipped to the range from 0 to one hour."""
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
        """The maximum value, or 0 if the histogram is empty."""
        return self.at_rank(self.total) if self.total else 0

    @property
    def mean_ns(self) -> float:
        """The mean value, or 0 if the histogram is empty."""
        if not self.total:
            return 0.0
        lows, highs, counts = self._buckets()
        return float((lows + highs) / 2 @ counts / self.total)

    def at_rank(self, rank: int) -> int:
        """Return the value of the `rank`-th smallest sample, counted from 1."""
        values, counts = self.counts()
        return int(values[np.searchsorted(np.cumsum(counts), rank)])

    def above(self, value_ns: int) -> int:
        """Return the number of samples above `value_ns`, which must be a value read from a histogram."""
        values, counts = self.counts()
        return int(counts[values > value_ns].sum())

    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return distinct values in ascending order, and the count of each."""
        _, highs, counts = self._buckets()
        return highs, counts

    def encode(self) -> bytes:
        """Encode the histogram in HdrHistogram's compressed V2 format, as base64."""
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

    def _buckets(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the lowest values, highest values and counts of the nonempty buckets, in ascending order."""
        numbers = np.asarray(sorted(self._counts), np.int64)
        octaves = np.maximum((numbers >> _STEP_BITS) - 1, 0)
        steps = numbers - (octaves << _STEP_BITS)
        counts = np.asarray([self._counts[number] for number in numbers.tolist()], np.int64)
        return steps << octaves, ((steps + 1) << octaves) - 1, counts


@dataclass(kw_only=True)
class SliceRecord:
    """Counts of one slice of a run. Requests are counted in the slice in which they are due, responses in the slice in
    which they arrive.

    Attributes:
        latency: latencies of due requests answered without an error, from the scheduled time in an open loop and from
            sending in a closed loop.
        lag: delays of sending after the scheduled time; empty in a closed loop.
        held_ns: sum of the parts of the lag during which the maximum number of requests was in flight.
        num_due: requests that were scheduled, or sent by a closed loop.
        num_unsent: scheduled requests that could not be sent before the run ended.
        num_repeated: requests with rows sent before, because all prepared requests had been sent.
        errors: gRPC status → number of requests that failed with it.
        send_ns: sum of the times from taking a request up until it is passed to the operating system.
        num_answered: responses without an error that arrived.
        cpu_ns: number of the client process → its CPU time.
        samples: (request number, response) of some requests, for comparison with the expected scores.
    """

    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    lag: LatencyHistogram = field(default_factory=LatencyHistogram)
    held_ns: int = 0
    num_due: int = 0
    num_unsent: int = 0
    num_repeated: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    send_ns: int = 0
    num_answered: int = 0
    cpu_ns: Counter[int] = field(default_factory=Counter)
    samples: list[tuple[int, bytes]] = field(default_factory=list)

    def merge(self, other: "SliceRecord") -> None:
        """Add the counts of another process, or later counts of the same process. Samples are not merged."""
        self.latency.merge(other.latency)
        self.lag.merge(other.lag)
        self.held_ns += other.held_ns
        self.num_due += other.num_due
        self.num_unsent += other.num_unsent
        self.num_repeated += other.num_repeated
        self.errors.update(other.errors)
        self.send_ns += other.send_ns
        self.num_answered += other.num_answered
        self.cpu_ns.update(other.cpu_ns)

    @classmethod
    def merged(cls, records: "Iterable[SliceRecord]") -> "SliceRecord":
        whole = cls()
        for record in records:
            whole.merge(record)
        return whole


_NUM_WINDOWS = 3
_MIN_ANSWERS = 50  # minimum per window for a meaningful median


class Windows:
    """The windows of a running measurement. The cost of an update does not depend on the length of the measurement.

    Latencies are counted in the slice in which a request was due, so late responses still change earlier slices. The
    last windows are therefore read again whenever another window ends. Windows with too few responses are longer than
    `window_s`; `tolerance` is the maximum difference of two windows that agree, relative to the smaller figure.
    """

    def __init__(self, window_s: float, tolerance: float) -> None:
        self._window_s, self._tolerance = window_s, tolerance
        self._num_seen = 0
        self.bounds: list[tuple[int, int]] = []
        """Slices of each window: first slice, and the slice after the last."""
        self.num_answered = 0
        """Number of responses in all slices."""
        self.is_stable = False
        """Whether the last three windows agreed when the last window ended."""

    def follow(self, slices: Sequence[SliceRecord]) -> None:
        """Process the slices completed since the last call. `slices` contains all slices since the start of the run."""
        self.num_answered += sum(record.num_answered for record in slices[self._num_seen :])
        self._num_seen = len(slices)
        num_windows, begin, num_latencies = len(self.bounds), self.bounds[-1][1] if self.bounds else 0, 0
        for number in range(begin, len(slices)):
            num_latencies += slices[number].latency.total
            if (number + 1 - begin) * SLICE_S >= self._window_s and num_latencies >= _MIN_ANSWERS:
                self.bounds.append((begin, number + 1))
                begin, num_latencies = number + 1, 0
        if len(self.bounds) > num_windows:
            last = [slices[first:end] for first, end in self.bounds[-_NUM_WINDOWS:]]
            self.is_stable = len(last) == _NUM_WINDOWS and _agree(last, self._tolerance)


def _agree(windows: Sequence[Sequence[SliceRecord]], tolerance: float) -> bool:
    """Whether throughput and median latency each vary by at most `tolerance` across windows, relative to the lowest."""
    wholes = [SliceRecord.merged(slices) for slices in windows]
    rates_per_s = [whole.num_answered / (len(slices) * SLICE_S) for whole, slices in zip(wholes, windows, strict=True)]
    medians_ns = [whole.latency.at_rank(math.ceil(whole.latency.total / 2)) for whole in wholes]
    return all(max(figures) <= (1 + tolerance) * min(figures) for figures in (rates_per_s, medians_ns))
