"""The load generator against a real server with scripted delays.

A server may take longer than its script says, never less, so what is asserted are bounds and sums that hold on any
machine. `tests/unit/serving/loadtest/generator/test_sender.py` has the exact latencies, in simulated time.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.scoring.backends import server_for
from rankline.serving.client import Client
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.identity import BACKENDS
from rankline.serving.loadtest.report.report import BenchmarkReport, LoadResult
from rankline.serving.loadtest.runner import measure
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.triton.config import ModelConfig
from rankline.workflows.core.errors import ServerError, ServingError
from rankline.workflows.schema.tensors import Tensor
from tests.factories.ensembles import NAME as TINY
from tests.factories.ensembles import publish_tiny
from tests.factories.training.models import identity_config, write_model

OWN_BACKENDS = Path(__file__).parent / "backends"
ROWS = pa.table({"x": np.arange(1000), "label": np.zeros(1000)})
STALL_MS = 1000
SCRIPTS = {
    "constant": {"delay_ms": "50"},
    **{f"stalls_{n}": {"delay_ms": "2", "stall_at": "100", "stall_ms": str(STALL_MS)} for n in range(2)},
    "hangs": {"delay_ms": "2", "stall_at": "50", "stall_ms": "600"},
    "steady": {"delay_ms": "20"},
}
QUICK = {
    "warmup_s": 0.2,
    "min_duration_s": 1.0,
    "time_limit_s": 1.0,
    "window_s": 0.25,
    "min_requests": 1,
    "timeout_s": 300.0,
}


ENOUGH = {**QUICK, "min_requests": 16, "time_limit_s": 60.0, "stability": 9.0}
"""Goes on until some requests were answered, however long a machine pauses."""


def one_at_a_time(message: Any) -> None:
    """Triton then hands the model one request after another: a queue with one server."""
    message.ClearField("dynamic_batching")


def sleep_config(name: str, **script: str) -> ModelConfig:
    x, y = (Tensor(name=name, dtype="int64") for name in "xy")
    return ModelConfig(name=name, backend="sleep", inputs=(x,), outputs=(y,), max_batch_size=8, parameters=script)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, identity_config())
    for name, script in SCRIPTS.items():
        write_model(repository, sleep_config(name, **script), one_at_a_time)
    backends = (BACKENDS, OWN_BACKENDS)
    with EmbeddedServer(ServerConfig(repositories=(repository,), backends=backends)) as running:
        yield running


@dataclass(frozen=True)
class Target:
    server: EmbeddedServer

    def report(self, model: str, config: LoadConfig, batch_size: int = 1) -> BenchmarkReport:
        with Client(self.server.endpoints.grpc, model) as client:
            expected = np.arange(1000)
            return measure(
                client, ROWS, (batch_size,), config=config, expected=expected, process_ids=self.server.process_ids
            )

    def result(self, model: str, config: LoadConfig, batch_size: int = 1) -> LoadResult:
        (result,) = self.report(model, config, batch_size).bench
        return result


def at_level_ms(result: LoadResult, level: float) -> float:
    """Of all latencies, which are there also where a busy machine made the client the bottleneck and none is stated."""
    histogram = result.latencies()
    return histogram.at_rank(max(int(level * histogram.total), 1)) / 1e6


@pytest.fixture
def target(server: EmbeddedServer) -> Target:
    return Target(server)


def latencies_ms(due_ms: np.ndarray, service_ms: np.ndarray) -> np.ndarray:
    """What requests wait and take at a queue with one server (Lindley's recursion)."""
    free_ms, found = 0.0, []
    for due, service in zip(due_ms, service_ms, strict=True):
        free_ms = max(free_ms, due) + service
        found.append(free_ms - due)
    return np.asarray(found)


@pytest.mark.slow
def test_open_loop_shows_a_stall_as_queueing_that_the_closed_loop_hides(target: Target) -> None:
    rate, warmup_s, duration_s = 100, 0.5, 3.0
    config = LoadConfig(
        rate=(rate,), arrivals="constant", warmup_s=warmup_s, min_duration_s=duration_s, time_limit_s=duration_s,
        timeout_s=300.0,
    )  # fmt: skip
    open_loop = target.result("stalls_0", config)
    count = int(rate * (warmup_s + duration_s))
    service_ms = np.full(count, 2.0)
    service_ms[99] = STALL_MS
    least = np.sort(latencies_ms(np.arange(count) * 1000 / rate, service_ms)[int(rate * warmup_s) :])
    assert open_loop.num_due == open_loop.num_requests + open_loop.num_unsent == len(least)
    for level in (0.90, 0.95, 1.0):
        assert at_level_ms(open_loop, level) >= 0.99 * least[int(level * len(least)) - 1]  # it has three digits
    closed = target.result("stalls_1", LoadConfig(**{**QUICK, "min_duration_s": 3.0, "time_limit_s": 3.0}))
    assert at_level_ms(closed, 1.0) >= 0.99 * STALL_MS
    assert at_level_ms(closed, 0.9) < STALL_MS  # few requests met it


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_due_requests_are_answered_or_counted_as_unsent(target: Target, transport: str) -> None:
    config = LoadConfig(**{**QUICK, "min_duration_s": 2.0, "time_limit_s": 2.0}, rate=(200,), arrivals="constant",
                        processes=2, transport=transport)  # fmt: skip
    report = target.report("identity", config)
    (result,) = report.bench
    assert result.num_due == result.num_requests + result.num_unsent == 400
    assert result.num_requests > 0
    assert result.errors == {}
    assert result.lag_p99_ms is not None
    assert report.num_checked >= result.num_requests // 16  # one in eight, less those that were due in the warm-up
    assert report.max_abs_error == 0


def test_breakdown_adds_up_to_the_latency(target: Target) -> None:
    began_s = time.perf_counter()
    result = target.result("constant", LoadConfig(**ENOUGH))
    elapsed_ms = 1e3 * (time.perf_counter() - began_s)
    breakdown = result.breakdown
    assert breakdown is not None
    around_ms = breakdown.client_ms + breakdown.network_ms + breakdown.remainder_ms
    assert around_ms + breakdown.steps["constant"].total_ms == pytest.approx(breakdown.total_ms)
    assert breakdown.total_ms == pytest.approx(result.latencies().mean_ns / 1e6)
    # The server's mean is of one request more or less than ours, and one may take long; it takes one after the other.
    assert 50 <= breakdown.steps["constant"].infer_ms <= elapsed_ms / (result.num_requests - 1)
    assert breakdown.client_ms > 0
    assert result.client_cpu_ms > 0
    assert result.server is not None
    assert result.server.num_processes == len(target.server.process_ids())
    assert result.server.memory_bytes > 1 << 20
    assert 0 <= result.server.cpu_cores < 1  # it sleeps


def test_late_answers_are_counted_and_a_problem(target: Target) -> None:
    result = target.result("hangs", LoadConfig(**{**QUICK, "timeout_s": 0.3}, rate=(100,), arrivals="constant"))
    assert result.errors
    # On a busy machine, the server may refuse calls while others are being canceled.
    assert result.errors.keys() <= {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
    assert sum(result.errors.values()) + result.num_requests + result.num_unsent == result.num_due
    assert result.problem


def test_trace_is_replayed(target: Target, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    times = np.sort(np.random.default_rng(0).uniform(7, 8.5, 90))
    trace.write_text("arrival_s,user\n" + "".join(f"{time},x\n" for time in times))
    result = target.result("identity", LoadConfig(**QUICK, arrivals=str(trace)))
    assert result.num_due == result.num_requests + result.num_unsent == 90
    assert result.duration_s >= 1.25  # slices of a quarter


@pytest.mark.slow
def test_search_finds_no_more_than_the_capacity_of_the_server(target: Target) -> None:
    config = LoadConfig(
        slo="p50=60ms", arrivals="constant", warmup_s=0.2, min_duration_s=0.75, time_limit_s=0.75, window_s=0.25
    )
    report = target.report("steady", config)
    assert report.searches is not None
    found, failed = report.searches[1].rate_per_s, report.searches[1].failed_per_s
    assert found is not None
    assert failed is not None
    assert found <= 1.15 * 1000 / 20
    assert found < failed <= 1.051 * found
    assert report.searches[1].num_probes == len(report.bench)
    assert report.slo == "p50=60ms"


@pytest.mark.slow
def test_batch_sizes_are_measured_and_compared(target: Target) -> None:
    with Client(target.server.endpoints.grpc, "identity") as client:
        config = LoadConfig(**{**QUICK, "min_requests": 100, "time_limit_s": 60.0, "stability": 9.0})
        report = measure(client, ROWS, (1, 16), config=config, expected=np.arange(1000), identity=client)
    assert [result.batch_size for result in report.bench] == [1, 16]
    for result in report.bench:
        assert result.num_requests >= 100
        levels = [at_level_ms(result, level) for level in (0.5, 0.9, 0.95, 0.99, 1.0)]
        assert levels[0] > 0
        assert levels == sorted(levels)
        assert result.rows_per_s == pytest.approx(result.batch_size * result.requests_per_s)
    assert report.num_checked >= sum(r.num_requests // 8 * r.batch_size for r in report.bench)
    assert report.max_abs_error == 0
    (floor,) = report.floors
    assert floor.requests_per_s > 0


def test_floor_is_native_where_native_backends_are(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / TINY, 10)
    with server_for(ensemble.path, with_identity=True) as server:
        assert server.identity == "native_identity"
        with Client(server.url, server.identity) as client:
            assert client.predict({"x": [1, 2]}).tolist() == [1, 2]


@pytest.mark.slow
def test_wrong_score_fails_the_run(target: Target) -> None:
    expected = np.arange(1000.0)
    expected[::50] += 1e-3
    with (
        Client(target.server.endpoints.grpc, "identity") as client,
        pytest.raises(ServingError, match=r"under load are wrong\. The largest error is 0\.001 \(row (\d*[05])?1 got "),
    ):
        measure(client, ROWS, (64,), config=LoadConfig(**ENOUGH), expected=expected)


def test_ctrl_c_keeps_the_finished_slices(target: Target) -> None:
    looks = []

    def process_ids() -> tuple[int, ...]:
        looks.append("begin" if not looks else "a slice is over")
        if len(looks) == 3:
            raise KeyboardInterrupt
        return target.server.process_ids()

    with Client(target.server.endpoints.grpc, "identity") as client:
        config = LoadConfig(**{**QUICK, "min_duration_s": 60.0, "time_limit_s": 60.0})
        report = measure(client, ROWS, (1,), config=config, process_ids=process_ids)
    (result,) = report.bench
    assert result.num_requests > 0
    assert 0.5 <= result.duration_s < 60
    assert result.server is not None
    assert "stopped by Ctrl-C after" in result.problem
    assert report.problems[1] == "the last measurement was cut short; later ones were not run."


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_measurements_survive_the_death_of_the_server(tmp_path: Path, transport: str) -> None:
    write_model(tmp_path, identity_config())
    with (
        EmbeddedServer(ServerConfig(repositories=(tmp_path,), backends=(BACKENDS,))) as server,
        Client(server.endpoints.grpc, "identity") as client,
    ):
        server_pid, looks = server.pid, []

        def process_ids() -> tuple[int, ...]:
            looks.append("begin" if not looks else "a slice is over")
            if len(looks) == 4:
                os.kill(server_pid, signal.SIGKILL)
            return ()

        config = LoadConfig(warmup_s=0.2, min_duration_s=60, time_limit_s=60, concurrency=(2, 4), transport=transport)
        report = measure(client, ROWS, (1,), config=config, process_ids=process_ids)
        (result,) = report.bench
        assert result.num_requests > 0
        assert result.is_cut_short
        assert len(report.problems) == 2
        assert "the server" in report.problems[0] or "the connection broke" in report.problems[0]
        with pytest.raises(ServerError, match="no server answers|returned no statistics for"):
            measure(client, ROWS, (1,), config=config)
