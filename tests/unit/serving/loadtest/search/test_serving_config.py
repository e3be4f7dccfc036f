"""The search for the best way of serving, on simulated servers whose capacity is known."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from rankline.serving.engines import Engine, engines
from rankline.serving.export.config import ExportConfig
from rankline.serving.loadtest.serving_config import VARIED, Measure, Reading, Trial, name_of, search, space
from rankline.workflows.core.errors import ConfigError, ServerError
from tests.factories.recorders import ProgressRecord

BOUND_MS = 10.0
TWO = [engines()["tensorflow"], engines()["onnx"]]
WITHOUT_THREADS = Engine(name="forest", package="forest", format="forest")
OWN = ExportConfig(instances=1, threads=2)


@dataclass
class Machine:
    """Serves each configuration as fast as `capacity` says, and counts seconds: a start takes 2 and 0.3 a warm-up."""

    capacity: Callable[[ExportConfig], float]
    now_s: float = 0.0
    starts: list[ExportConfig] = field(default_factory=list)
    probes: list[float | None] = field(default_factory=list)

    @contextmanager
    def serve(self, config: ExportConfig) -> Iterator[Measure]:
        self.starts.append(config)
        self.now_s += 2
        capacity = self.capacity(config)
        if not capacity:
            raise ServerError("out of memory.")

        def probe(rate_per_s: float | None, duration_s: float) -> Reading:
            self.now_s += 0.3 + duration_s
            self.probes.append(rate_per_s)
            latency_ms = 4000 / capacity
            if rate_per_s is not None:
                latency_ms = latency_ms / (1 - rate_per_s / capacity) if rate_per_s < capacity else 1e4
            holds = latency_ms <= BOUND_MS
            answered = 1000 / latency_ms if rate_per_s is None else min(rate_per_s, capacity)
            return Reading(
                rate_per_s=rate_per_s, answered_per_s=answered, holds=holds, value_ms=latency_ms, memory_bytes=1
            )

        yield probe

    def search(self, configs: Sequence[ExportConfig], time_limit_s: float = 900) -> list[Trial]:
        self.kept: list[Trial] = []
        return search(
            configs,
            self.serve,
            time_limit_s=time_limit_s,
            keep=self.kept.append,
            progress=ProgressRecord(),
            clock=lambda: self.now_s,
        )


def highest(capacity: float) -> float:
    """The rate at which a machine of that capacity reaches the bound."""
    return capacity * (1 - 4000 / capacity / BOUND_MS)


def by_fields(config: ExportConfig) -> float:
    """Onnx, two instances and waiting for others pay."""
    engine = {"onnx": 2.0, "tensorflow": 1.0}[str(config.engine)]
    return 2000 * engine * config.instances**0.5 * (1.1 if config.fused else 1) * (1 + config.batch_delay_ms / 20)


def test_search_finds_the_best_by_few_measurements() -> None:
    machine, configs = Machine(by_fields), space(OWN, TWO, BOUND_MS, 2)
    tried = machine.search(configs)
    best = max(configs, key=by_fields)
    assert tried[0].config == best
    assert tried[0].rate_per_s == pytest.approx(highest(by_fields(best)), rel=0.06)
    assert tried[0].is_final
    assert len(machine.probes) < 3 * len(configs)
    assert machine.now_s < 300
    dropped = [one for one in tried if one.rate_per_s is None]
    assert dropped
    assert all(len(one.readings) == 1 for one in dropped)
    assert {name_of(one.config): one for one in machine.kept} == {name_of(one.config): one for one in tried}


def test_search_begins_with_the_current_config_and_skips_delays_of_slow_ones() -> None:
    machine, configs = Machine(by_fields), space(OWN, TWO, BOUND_MS, 2)
    assert configs[0] == replace(OWN, engine="tensorflow", fused=True)
    machine.search(configs)
    slow = [config for config in machine.starts if config.engine == "tensorflow" and config.batch_delay_ms]
    assert slow == []


def test_search_ends_in_time_and_measures_its_best_for_longer() -> None:
    machine, configs = Machine(by_fields), space(OWN, TWO, BOUND_MS, 16)
    tried = machine.search(configs, time_limit_s=60)
    assert len(tried) < len(configs)
    assert machine.now_s < 90
    assert tried[0].is_final
    assert machine.search(configs, time_limit_s=1)[0].rate_per_s is not None  # however little time there is


def test_search_where_nothing_meets_the_target() -> None:
    machine, configs = Machine(lambda _: 300), space(OWN, TWO, BOUND_MS, 2)
    tried = machine.search(configs)
    assert {one.rate_per_s for one in tried} == {None}
    assert {one.last.rate_per_s for one in tried if one.last} == {None}  # one request at a time says it
    assert machine.probes == [None] * len(tried)


def test_search_survives_a_config_that_cannot_be_served() -> None:
    machine = Machine(lambda config: 0 if config.engine == "tensorflow" else by_fields(config))
    tried = machine.search(space(OWN, TWO, BOUND_MS, 2))
    assert tried[0].config.engine == "onnx"
    assert {one.failure for one in tried if one.config.engine == "tensorflow"} == {"out of memory."}


def test_search_rejects_a_config_that_does_not_hold_for_long() -> None:
    """The capacity of one falls after its first start."""
    seen: dict[ExportConfig, int] = {}

    def capacity(config: ExportConfig) -> float:
        seen[config] = seen.get(config, 0) + 1
        return by_fields(config) if config.instances == 1 or seen[config] == 1 else 500

    tried = Machine(capacity).search(space(OWN, TWO, BOUND_MS, 2, only=("engine", "instances")))
    assert tried[0].config == replace(OWN, engine="onnx")


@pytest.mark.parametrize(
    ("only", "cores", "expected"),
    [
        (VARIED, 2, {(1, 1), (1, 2), (2, 1)}),
        (("instances", "threads"), 4, {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}),
        (("threads",), 4, {(1, 1), (1, 2), (1, 4)}),
        (("fused",), 4, {(1, 2)}),
    ],
)
def test_space_shares_the_cores(only: tuple[str, ...], cores: int, expected: set[tuple[int, int]]) -> None:
    found = space(OWN, TWO, BOUND_MS, cores, only)
    assert {(config.instances, config.threads) for config in found} >= expected
    assert all(config.instances * config.threads <= cores for config in found[1:])


def test_space_varies_what_engine_and_bound_allow() -> None:
    found = space(OWN, [WITHOUT_THREADS], 4.0, 4)
    assert {config.threads for config in found} == {2}
    assert {config.batch_delay_ms for config in found} == {0.0, 0.5}
    assert {config.fused for config in space(OWN, TWO, BOUND_MS, 2, ("engine",))} == {None}


@pytest.mark.parametrize(
    ("only", "engines_", "message"),
    [
        (("thread",), TWO, "thread cannot be tuned for serving. Did you mean 'threads'"),
        (("engine",), TWO[:1], "only tensorflow serves this model"),
        (("threads",), [WITHOUT_THREADS], "there is nothing to compare"),
    ],
)
def test_space_refuses_what_cannot_be_varied(only: tuple[str, ...], engines_: Sequence[Engine], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(OWN, engines_, BOUND_MS, 2, only)
