"""Whether a run is stable: its last three windows agree in throughput and median latency.

The rule is that of perf_analyzer, except that earlier windows stay in the result, so that slow phases are not
discarded.
"""

import math
from collections.abc import Sequence

from rankline.serving.loadtest.stats.counters import SLICE_S, SliceRecord

_NUM_WINDOWS = 3
_MIN_ANSWERS = 50  # minimum per window for a meaningful median


class Windows:
    """Splits a running measurement into windows, at a cost that does not grow with its length.

    Latencies are counted in the slice in which a request was due, so late responses still change earlier slices. The
    last windows are therefore read again whenever another window ends.

    Args:
        window_s: length of a window; windows with too few responses are longer.
        tolerance: maximum difference between two windows that agree, relative to the smaller figure.
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
        """Process the slices that ended since the last call; `slices` are all slices since the beginning of the run."""
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
    """Whether throughput and median latency differ by at most `tolerance`, relative to the smaller figure."""
    wholes = [SliceRecord.merged(slices) for slices in windows]
    rates_per_s = [whole.num_answered / (len(slices) * SLICE_S) for whole, slices in zip(wholes, windows, strict=True)]
    medians_ns = [whole.latency.at_rank(math.ceil(whole.latency.total / 2)) for whole in wholes]
    return all(max(figures) <= (1 + tolerance) * min(figures) for figures in (rates_per_s, medians_ns))
