"""Whether a run has settled: three windows in a row agree in throughput and in median latency.

The rule is perf_analyzer's. Unlike there, the windows before stay in the result: what was slow is not thrown away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serving.benchmark.records import SLICE_S, SliceRecord

NUM_WINDOWS = 3
_FEWEST_ANSWERS = 50  # of a window; the median of less than that says little


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive slices.

    Attributes:
        rate_per_s: answers in a second.
        p50_ns: median latency.
    """

    rate_per_s: float
    p50_ns: int

    @classmethod
    def of(cls, slices: Sequence[SliceRecord]) -> "Window":
        """The window that some slices with answers make up."""
        whole = SliceRecord.merged(slices)
        return cls(
            rate_per_s=whole.num_answered / (len(slices) * SLICE_S),
            p50_ns=whole.latency.at_rank(math.ceil(whole.latency.total / 2)),
        )


class Windows:
    """Cuts a run into windows while it goes on. What it costs does not grow with the length of the run.

    An answer is counted where it was due, so late ones still change slices that are over: the last windows are read
    anew when another one ends.

    Args:
        window_s: length of a window; longer where that holds too few answers.
        tolerance: see `agree`.
    """

    def __init__(self, window_s: float, tolerance: float) -> None:
        self._window_s, self._tolerance = window_s, tolerance
        self._num_seen = 0
        self.bounds: list[tuple[int, int]] = []
        """First slice of each window, and the one after its last."""
        self.num_answered = 0
        """Answers that came in, in all slices."""
        self.is_stable = False
        """The last three windows agreed when the last one ended."""

    def follow(self, slices: Sequence[SliceRecord]) -> None:
        """Look at slices that are over since the last time.

        Args:
            slices: all that are over, from the beginning of the run.
        """
        self.num_answered += sum(record.num_answered for record in slices[self._num_seen :])
        self._num_seen = len(slices)
        num_windows, begin, num_latencies = len(self.bounds), self.bounds[-1][1] if self.bounds else 0, 0
        for number in range(begin, len(slices)):
            num_latencies += slices[number].latency.total
            if (number + 1 - begin) * SLICE_S >= self._window_s and num_latencies >= _FEWEST_ANSWERS:
                self.bounds.append((begin, number + 1))
                begin, num_latencies = number + 1, 0
        if len(self.bounds) > num_windows:
            last = [Window.of(slices[first:end]) for first, end in self.bounds[-NUM_WINDOWS:]]
            self.is_stable = agree(last, self._tolerance)


def agree(windows: Sequence[Window], tolerance: float) -> bool:
    """There are three windows, and they agree.

    Args:
        windows: the last ones of a run.
        tolerance: largest difference between two of them, as a share of the smaller figure.
    """
    if len(windows) < NUM_WINDOWS:
        return False
    return all(
        max(figures) <= (1 + tolerance) * min(figures)
        for figures in ([w.rate_per_s for w in windows], [w.p50_ns for w in windows])
    )
