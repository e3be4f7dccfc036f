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


def windows_of(slices: Sequence[SliceRecord], window_s: float) -> list[Window]:
    """Cut a run into windows of `window_s`, longer where that holds too few answers. What is left over is in none."""
    windows: list[Window] = []
    group: list[SliceRecord] = []
    num_answered = 0
    for record in slices:
        group.append(record)
        num_answered += record.latency.total
        if len(group) * SLICE_S >= window_s and num_answered >= _FEWEST_ANSWERS:
            whole = SliceRecord.merged(group)
            rate_per_s = whole.num_answered / (len(group) * SLICE_S)
            windows.append(Window(rate_per_s=rate_per_s, p50_ns=whole.latency.at_rank(math.ceil(num_answered / 2))))
            group, num_answered = [], 0
    return windows


def is_stable(windows: Sequence[Window], tolerance: float) -> bool:
    """The last three windows agree.

    Args:
        windows: in the order of time.
        tolerance: largest difference between two of them, as a share of the smaller figure.
    """
    last = windows[-NUM_WINDOWS:]
    if len(last) < NUM_WINDOWS:
        return False
    return all(
        max(figures) <= (1 + tolerance) * min(figures)
        for figures in ([w.rate_per_s for w in last], [w.p50_ns for w in last])
    )
