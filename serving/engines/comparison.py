"""Which of the engines that can serve a model is the fastest on this machine, for how many rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from serving.engines.offline import ScoringModel
    from workflows.lists import Padded

BATCH_SIZES = (1, 16, 256, 1_024, 4_096, 16_384)
LONG_ROWS_BATCH_SIZES = BATCH_SIZES[:4]
"""Of rows that candidates share, which hold a history: more of them take seconds."""

_MIN_TURNS = 3
_MAX_TURNS = 200
_ALIKE = 1.05
"""Engines that differ by less are as fast as each other."""


@dataclass(frozen=True, kw_only=True)
class EngineComparison:
    """How long one batch takes in each engine, in this process; `dataclasses.asdict` makes JSON of it.

    Attributes:
        batch_sizes: in rows, ascending.
        latency_ms: engine → median per batch size.
    """

    batch_sizes: Sequence[int]
    latency_ms: Mapping[str, Sequence[float]]

    def summary(self) -> str:
        """One sentence: the fastest engine by batch size, and by how much at most it beats the next one."""
        if len(self.latency_ms) < 2:
            return "no other engine to compare with"
        sizes = [self._fastest(number) for number in range(len(self.batch_sizes))]
        runs = [(winner, list(run)) for winner, run in groupby(sizes, key=lambda entry: entry[0])]
        parts = [self._part(winner, run, is_first=not number) for number, (winner, run) in enumerate(runs)]
        return ", ".join(parts)

    def _fastest(self, number: int) -> tuple[str, int, float]:
        """The fastest engine at a batch size, the size, and how many times as long the next one takes."""
        (winner, best), (_, second), *_ = sorted(
            ((engine, times[number]) for engine, times in self.latency_ms.items()), key=lambda entry: entry[1]
        )
        ratio = second / best
        return (winner if ratio >= _ALIKE else self._nobody), self.batch_sizes[number], ratio

    @property
    def _nobody(self) -> str:
        return "neither" if len(self.latency_ms) == 2 else "none"

    def _part(self, winner: str, run: Sequence[tuple[str, int, float]], *, is_first: bool) -> str:
        first, last = run[0][1], run[-1][1]
        if last == self.batch_sizes[-1]:
            where = f"up to {last:,} rows" if is_first else f"from {first:,} on" if first < last else f"at {last:,}"
        elif is_first:
            where = f"up to {last:,} rows" if first < last else f"at {_rows(last)}"
        else:
            where = f"from {first:,} to {last:,}" if first < last else f"at {last:,}"
        _, size, ratio = max(run, key=lambda entry: entry[2])
        at = "" if first == last else f" at {_rows(size) if is_first else f'{size:,}'}"
        much = "" if winner == self._nobody else f" ({ratio:.1f}x{at})"
        return f"{winner} {'is faster ' if is_first else ''}{where}{much}"


def compare_engines(
    models: "Mapping[str, ScoringModel]",
    columns: "Mapping[str, NDArray[Any] | Padded]",
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    budget_s: float = 2.0,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> EngineComparison:
    """Time engines on the calls that their backends make, in turns, on all cores.

    Args:
        models: engine → the same model in it, one at least.
        columns: rows that a plan encoded, at least one; they are repeated to make up a batch.
        batch_sizes: in rows, ascending.
        budget_s: for all of it, about: a slow model takes what three calls take.
        clock_ns: time in nanoseconds.
    """
    import numpy as np

    from workflows.lists import padded_tensors

    arrays = padded_tensors(columns)
    calls = {engine: model.served_call(list(arrays)) for engine, model in models.items()}
    latency_ms: dict[str, list[float]] = {engine: [] for engine in models}
    for size in batch_sizes:
        batch = [np.ascontiguousarray(array[np.arange(size) % len(array)]) for array in arrays.values()]
        taken_ns: dict[str, list[int]] = {engine: [] for engine in models}
        deadline = clock_ns() + int(budget_s / len(batch_sizes) * 1e9)
        for turn in range(_MAX_TURNS + 1):
            if turn > _MIN_TURNS and clock_ns() > deadline:
                break
            for engine, call in calls.items():
                begin = clock_ns()
                call(*batch)
                taken_ns[engine].append(clock_ns() - begin)
        for engine, durations in taken_ns.items():
            latency_ms[engine].append(round(median(durations[1:]) / 1e6, 4))  # the first one allocates
    return EngineComparison(batch_sizes=tuple(batch_sizes), latency_ms=latency_ms)


def _rows(size: int) -> str:
    return f"{size:,} row{'' if size == 1 else 's'}"
