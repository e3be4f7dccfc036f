"""Search for the serving configuration with the most requests per second within a latency bound.

Configurations are measured one after another against the best rate so far: a configuration that misses the target near
that rate is dropped after a single short measurement. The best few are measured again, for longer.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from rankline.serving.engines import Engine
from rankline.serving.export.config import ExportConfig
from rankline.serving.loadtest.rate import highest_rate
from rankline.workflows.core.errors import ConfigError, RanklineError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.core.progress import SILENT, Progress

VARIED = ("engine", "fused", "instances", "threads", "batch_delay_ms")
"""Fields of `ExportConfig` that a search varies."""
_DELAYS_MS = (0.0, 0.5, 2.0)
_MAX_DELAY = 0.25  # fraction of the bound
_NEAR = 0.9  # fraction of the best rate at which a configuration must meet the target
_NUM_FINALISTS = 3
_FIRST_SHARE = 0.6  # fraction of the time for short measurements
_FARTHEST = 16  # factor between the first guess and the lowest rate tested


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One measurement of a server.

    The rate is None for one request at a time, `value_ms` (the target's percentile) if it is not reported, and the
    memory if the server's processes are not accessible. `holds` says whether the target was met.
    """

    rate_per_s: float | None
    answered_per_s: float
    holds: bool
    value_ms: float | None
    memory_bytes: int | None


Measure: TypeAlias = Callable[[float | None, float], Reading]
"""Function that measures for a number of seconds at a rate, or with one request at a time if the rate is None."""
Serve: TypeAlias = Callable[[ExportConfig], AbstractContextManager[Measure]]
"""Context manager that serves a configuration."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Settings that control a trial's precision: its duration and the parameters of `highest_rate`."""

    duration_s: float
    step: float
    resolution: float
    confirmations: int


SHORT = Effort(duration_s=1.0, step=2.0, resolution=0.1, confirmations=0)
LONG = Effort(duration_s=3.0, step=1.25, resolution=0.05, confirmations=1)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A configuration and its measurements.

    Attributes:
        rate_per_s: highest rate that met the target; None if the trial was dropped.
        is_final: whether the configuration was among the best few, which are measured for longer.
        failure: why the configuration was not measured; empty if it was.
    """

    config: ExportConfig
    readings: tuple[Reading, ...] = ()
    rate_per_s: float | None = None
    is_final: bool = False
    failure: str = ""

    @property
    def last(self) -> Reading | None:
        """The last reading at the highest rate that met the target, or the final reading of a dropped trial."""
        held = [one for one in self.readings if one.holds and one.rate_per_s == self.rate_per_s]
        return next(reversed(held or self.readings), None)

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of the server's processes; None if it could not be read."""
        return max((one.memory_bytes for one in self.readings if one.memory_bytes is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "memory_bytes": self.memory_bytes}


def space(
    own: ExportConfig, engines: Sequence[Engine], bound_ms: float, num_cores: int, only: Collection[str] = VARIED
) -> list[ExportConfig]:
    """Return the configurations to try, starting with the current one and ordered by decreasing similarity to it.

    The first of the `engines` serves the model without conversion. The latency bound limits how long requests wait to
    be batched; instances and threads share `num_cores`.

    Raises:
        ConfigError: a field cannot be varied, or there is nothing to compare.
    """
    if unknown := sorted(set(only) - set(VARIED)):
        hint = did_you_mean(unknown, VARIED)
        raise ConfigError(f"{', '.join(unknown)} cannot be tuned for serving.{hint} Available: {', '.join(VARIED)}.")
    first = next((engine for engine in engines if engine.name == own.engine), engines[0])
    if "engine" in only and len(engines) == 1 and set(only) != set(VARIED):
        raise ConfigError(f"engine cannot be varied: only {first.name} serves this model. Remove engine from --only.")
    base = replace(
        own,
        engine=first.name,
        fused=own.fused is not False if "fused" in only else own.fused,
        instances=own.num_instances,
        threads=own.num_threads,
    )
    found: dict[ExportConfig, None] = {base: None}
    for engine in engines if "engine" in only else (first,):
        for fused, (instances, threads), delay_ms in product(
            (True, False) if "fused" in only else (base.fused,),
            _shares(base, num_cores, only),
            [ms for ms in _DELAYS_MS if ms <= bound_ms * _MAX_DELAY]
            if "batch_delay_ms" in only
            else (base.batch_delay_ms,),
        ):
            one = replace(
                base,
                engine=engine.name,
                fused=fused,
                instances=instances,
                threads=threads if engine.threads_parameter else base.threads,
                batch_delay_ms=delay_ms,
            )
            found.setdefault(one)
    if len(found) == 1:
        raise ConfigError(
            f"the only configuration is {name_of(base)}, so there is nothing to compare. Add settings to --only."
        )

    def distance(one: ExportConfig) -> tuple[bool, int]:
        num_others = sum(getattr(one, name) != getattr(base, name) for name in VARIED)
        return one.batch_delay_ms != base.batch_delay_ms, num_others

    return sorted(found, key=distance)


def name_of(config: ExportConfig) -> str:
    delay = f", delay {config.batch_delay_ms:g} ms" if config.batch_delay_ms else ""
    steps = "" if config.fused is None else ", one step" if config.fused else ", two steps"
    return f"{config.engine}{steps}, {config.instances}x{config.threads} threads{delay}"


def _shares(base: ExportConfig, num_cores: int, only: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield instance and thread counts to try: powers of two, with a product up to `num_cores` if both vary."""
    powers = [2**power for power in range(num_cores.bit_length()) if 2**power <= num_cores]
    for instances in powers if "instances" in only else (base.instances,):
        for threads in powers if "threads" in only else (base.threads,):
            if instances * threads <= num_cores or not {"instances", "threads"} <= set(only):
                yield instances, threads


def search(
    configs: Sequence[ExportConfig],
    serve: Serve,
    *,
    time_limit_s: float,
    keep: Callable[[Trial], None] = lambda _: None,
    progress: Progress = SILENT,
    clock: Callable[[], float] = time.monotonic,
) -> list[Trial]:
    """Measure configurations to find the best one within the time limit.

    Once a configuration has met the target, no measurement begins after `time_limit_s`. `keep` is called with each
    finished trial, and again for the best few.

    Returns:
        One trial per configuration that was tried, the best first: first the ones measured for longer, by rate, then
            the others. No trial has a rate if no configuration meets the target.
    """
    begin_s, trials = clock(), dict[ExportConfig, Trial]()
    num_steps = len(configs) + _NUM_FINALISTS

    def done(trial: Trial) -> None:
        trials[trial.config] = trial
        keep(trial)

    def say(number: int, note: str) -> None:
        ranked = _ranked(trials)
        if ranked and ranked[0].rate_per_s is not None:
            note += f"; best {ranked[0].rate_per_s:,.0f}/s by {name_of(ranked[0].config)}"
        progress.update(number, num_steps, note)

    for number, config in enumerate(configs):
        end_s = begin_s + time_limit_s * _FIRST_SHARE
        if clock() >= end_s:
            break
        near = _NEAR * _best_rate(trials.values())
        without_delay = trials.get(replace(config, batch_delay_ms=0.0))
        if without_delay is not None and (without_delay.rate_per_s or 0.0) < near:
            continue  # batching does not make up for a large deficit
        say(number, name_of(config))
        limits = {"start": near, "lowest": near, "end_s": end_s} if near else {}
        done(try_config(config, serve, SHORT, clock=clock, **limits))
    finalists = [trial for trial in _ranked(trials) if trial.rate_per_s is not None][:_NUM_FINALISTS]
    for number, short in enumerate(finalists):
        assert short.rate_per_s is not None
        say(len(configs) + number, f"longer: {name_of(short.config)}")
        end_s = clock() + (begin_s + time_limit_s - clock()) / (len(finalists) - number)
        best = _best_rate(trial for trial in trials.values() if trial.is_final)
        start, lowest = (best, best) if best else (_NEAR * short.rate_per_s, short.rate_per_s / _FARTHEST)
        again = try_config(short.config, serve, LONG, start=start, lowest=lowest, clock=clock, end_s=end_s)
        done(
            replace(
                again,
                readings=(*short.readings, *again.readings),
                rate_per_s=None if again.failure else again.rate_per_s or short.rate_per_s,
                is_final=again.rate_per_s is not None,
            )
        )
    return _ranked(trials)


def _ranked(trials: Mapping[ExportConfig, Trial]) -> list[Trial]:
    return sorted(trials.values(), key=lambda trial: (trial.is_final, trial.rate_per_s or 0.0), reverse=True)


def _best_rate(trials: Iterable[Trial]) -> float:
    return max((trial.rate_per_s or 0.0 for trial in trials), default=0.0)


def try_config(
    config: ExportConfig,
    serve: Serve,
    effort: Effort,
    *,
    start: float | None = None,
    lowest: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    end_s: float = math.inf,
) -> Trial:
    """Search for the highest rate at which one configuration meets the latency target.

    Args:
        start: first rate; None to begin with one request at a time.
        lowest: rate below which the configuration is dropped; None for a rate far below the first.
        end_s: time on the clock at which to stop.
    """
    readings: list[Reading] = []
    rate_per_s, failure = None, ""

    def holds(rate_per_s: float | None) -> bool:
        if readings and clock() >= end_s:
            raise _TimeUpError
        readings.append(measure(rate_per_s, effort.duration_s))
        return readings[-1].holds

    try:
        with serve(config) as measure:
            if start is not None or holds(None):
                start = start or max(readings[-1].answered_per_s / 2, 1.0)
                rate_per_s = highest_rate(
                    holds,
                    start=start,
                    lowest=lowest or start / _FARTHEST,
                    step=effort.step,
                    resolution=effort.resolution,
                    confirmations=effort.confirmations,
                ).rate_per_s
    except _TimeUpError:
        rate_per_s = max((one.rate_per_s for one in readings if one.holds and one.rate_per_s), default=None)
    except RanklineError as error:
        failure = str(error)
    return Trial(config=config, readings=tuple(readings), rate_per_s=rate_per_s, failure=failure)


class _TimeUpError(Exception):
    pass
