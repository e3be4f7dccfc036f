"""The engines that a model can be served by, and which of two is the faster one on this machine.

Light to import: what runs a model is imported when one is loaded.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

from workflows.errors import ConfigError
from workflows.trained import BACKENDS, ONNX, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from serving.backends.offline import ScoringModel
    from serving.plan import Padded

ONNX_ENGINE = "onnx"
ENGINES: Mapping[str, Backend] = {**BACKENDS, ONNX_ENGINE: ONNX}
"""What `--engine` takes: the frameworks that train, and ONNX, which any model is converted to."""

BATCH_SIZES = (1, 16, 256, 1_024, 4_096, 16_384)
LONG_ROWS_BATCH_SIZES = BATCH_SIZES[:4]
"""Of rows that candidates share, which hold a history: more of them take seconds."""

_MIN_TURNS = 3
_MAX_TURNS = 200
_ALIKE = 1.05
"""Engines that differ by less are as fast as each other."""


def backend_of(trained: Backend, engine: str | None) -> Backend:
    """What serves a model.

    Args:
        trained: what trained it.
        engine: a name of `ENGINES`; None for what trained it.

    Raises:
        ConfigError: there is no such engine, or it is another framework.
    """
    if engine is None:
        return trained
    if ENGINES.get(engine) not in (trained, ONNX):
        raise ConfigError(
            f"engine is {engine!r}, expected {trained.name}, which trained the model, or {ONNX_ENGINE}, which it is "
            "converted to."
        )
    return ENGINES[engine]


def engine_name(backend: Backend) -> str:
    """The name of the engine that a backend is."""
    return next(name for name, engine in ENGINES.items() if engine == backend)


@dataclass(frozen=True, kw_only=True)
class EngineComparison:
    """How long one batch takes in each of two engines, in this process; `dataclasses.asdict` makes JSON of it.

    Attributes:
        batch_sizes: in rows, ascending.
        latency_ms: engine → median per batch size.
    """

    batch_sizes: Sequence[int]
    latency_ms: Mapping[str, Sequence[float]]

    def summary(self) -> str:
        """One sentence: which engine is faster at which batch sizes, and by how much at most."""
        (one, times), (other, other_times) = self.latency_ms.items()
        sizes = []
        for size, left, right in zip(self.batch_sizes, times, other_times, strict=True):
            ratio = max(left, right) / min(left, right)
            winner = "neither" if ratio < _ALIKE else one if left < right else other
            sizes.append((winner, size, ratio))
        runs = [(winner, list(run)) for winner, run in groupby(sizes, key=lambda entry: entry[0])]
        parts = [self._part(winner, run, is_first=not number) for number, (winner, run) in enumerate(runs)]
        return ", ".join(parts)

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
        much = "" if winner == "neither" else f" ({ratio:.1f}x{at})"
        return f"{winner} {'is faster ' if is_first else ''}{where}{much}"


def compare_engines(
    models: "Mapping[str, ScoringModel]",
    columns: "Mapping[str, NDArray[Any] | Padded]",
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    budget_s: float = 2.0,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> EngineComparison:
    """Time two engines on the calls that their backends make, in turns, on all cores.

    Args:
        models: engine → the same model in it.
        columns: rows that a plan encoded, at least one; they are repeated to make up a batch.
        batch_sizes: in rows, ascending.
        budget_s: for all of it, about: a slow model takes what three calls take.
        clock_ns: time in nanoseconds.
    """
    import numpy as np

    from serving.plan import padded_inputs

    arrays = padded_inputs(columns)
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
