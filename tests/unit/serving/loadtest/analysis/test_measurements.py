"""What is measured beside latencies: bottlenecks, resources, where time goes, and whether scores are right."""

import os
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2

from rankline.serving.loadtest.measurement import Answered, ScoreCheck
from rankline.serving.loadtest.runner import check_batch_sizes
from rankline.serving.loadtest.runs import ClientCost, bottleneck
from rankline.serving.loadtest.server_breakdown import ResourceMeter, Statistics
from rankline.workflows.core.errors import ConfigError, ServingError
from rankline.workflows.schema.tensors import Tensor
from tests.harness.process.waiting import wait_until

SPIN = "import sys; block = bytearray(64 << 20); print('spins', flush=True)\nwhile True: pass"


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_resources_of_a_spinning_process() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        meter, spent_s = ResourceMeter(lambda: (process.pid,)), partial(cpu_s, process.pid)
        outside_s, before_s = time.perf_counter(), spent_s()
        meter.begin()
        begin_s, inside_s = spent_s(), time.perf_counter()
        wait_until(lambda: spent_s() > begin_s + 0.2)
        end_s, inside_s = spent_s(), time.perf_counter() - inside_s
        meter.end()
        after_s, outside_s = spent_s(), time.perf_counter() - outside_s
        process.kill()
    used = meter.result()
    assert used is not None
    assert (end_s - begin_s) / outside_s <= used.cpu_cores <= (after_s - before_s) / inside_s
    assert used.memory_bytes > 64 << 20
    assert used.num_processes == 1


def test_resources_of_a_remote_server_are_unknown() -> None:
    meter = ResourceMeter(tuple)
    meter.begin()
    meter.end()
    assert meter.result() is None


def test_resources_leave_out_ended_processes() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    meter = ResourceMeter(lambda: (os.getpid(), gone.pid))
    meter.begin()
    meter.end()
    used = meter.result()
    assert used is not None
    assert used.num_processes == 1


MS = 1_000_000
BEFORE = {"count": 5}
AFTER = {
    "count": 105,
    "success": 100 * 5 * MS,
    **dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 100 * MS),
}


@pytest.fixture
def statistics() -> Statistics:
    """Statistics of a model that is its own only step, from no server."""
    made = Statistics.__new__(Statistics)
    made._name, made._steps = "m", ["m"]
    return made


@pytest.mark.parametrize(
    ("latency_ms", "client_ms", "num_requests", "expected"),
    [
        (10.0, 2.0, 100, {"client": 2.0, "network": 3.0, "remainder": 1.0}),
        (6.5, 2.0, 100, {"client": 2.0, "network": 0.0, "remainder": 0.5}),
        (5.0, 2.0, 100, {"client": 2.0, "network": 0.0, "remainder": -1.0}),
        (10.0, 2.0, 50, None),
    ],
)
def test_breakdown_adds_up_and_network_time_is_not_negative(
    statistics: Statistics, latency_ms: float, client_ms: float, num_requests: int, expected: dict[str, float] | None
) -> None:
    found = statistics.breakdown(
        {"m": BEFORE}, {"m": AFTER}, num_requests=num_requests, latency_ms=latency_ms, client_ms=client_ms
    )
    if expected is None:
        assert found is None
        return
    assert found is not None
    parts = {"client": found.client_ms, "network": found.network_ms, "remainder": found.remainder_ms}
    assert parts == pytest.approx(expected)
    assert sum(parts.values()) + found.steps["m"].total_ms == pytest.approx(latency_ms)


SCORE = (Tensor(name="score", dtype="float32", dims=(1,)),)
EXPECTED = np.asarray([0.1, 0.2, 0.3], np.float32)


def answered(rows: list[int], *scores: float, id: str = "7", version: str = "") -> Answered:
    content = np.asarray(scores, np.float32).tobytes()
    response = service_pb2.ModelInferResponse(id=id, model_version=version, raw_output_contents=[content])
    return Answered(number=7, process=1, rows=np.asarray(rows), body=response.SerializeToString())


def test_score_check_counts_scores_and_keeps_the_largest_difference() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3)
    check.compare([answered([2, 0], 0.3, 0.1), answered([1], 0.2005)])
    assert check.num_checked == 3
    assert check.max_abs_error == pytest.approx(5e-4, rel=1e-3)


def test_score_check_refuses_answers_of_another_request_or_version() -> None:
    check = ScoreCheck(EXPECTED, SCORE, tolerance=1e-3, version=4)
    check.compare([answered([0], 0.1, version="4")])
    with pytest.raises(ServingError, match=r"request 7 of process 1 got the response to request '9'\."):
        check.compare([answered([0], 0.1, id="9", version="4")])
    with pytest.raises(ServingError, match="version 5 of the model responded under load, expected version 4"):
        check.compare([answered([0], 0.1, version="5")])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            (0.3, 0.2),
            r"1 of 2 scores .*are wrong\. The largest error is 0\.1 \(row 1 got 0\.2, expected 0\.1\), but the "
            r"tolerance is 0\.001",
        ),
        ((0.35, 0.2), r"2 of 2 scores .*are wrong\. The largest error is 0\.1 \(row 1 got 0\.2, expected 0\.1"),
        ((0.5, 0.2), r"2 of 2 scores .*are wrong\. The largest error is 0\.2 \(row 3 got 0\.5, expected 0\.3"),
        ((0.9, float("nan")), r"2 of 2 scores .*The largest error is inf \(row 1 got nan, expected 0\.1"),
        ((0.3,), "has 1 scores, expected 2"),
    ],
)
def test_score_check_refuses_wrong_scores(scores: tuple[float, ...], message: str) -> None:
    with pytest.raises(ServingError, match=message):
        ScoreCheck(EXPECTED, SCORE, tolerance=1e-3).compare([answered([2, 0], *scores)])


def test_score_check_without_expected_scores_compares_nothing() -> None:
    check = ScoreCheck(None, SCORE, tolerance=0)
    check.compare([answered([0], 0.7)])
    assert check.num_checked == 0


@pytest.mark.parametrize(
    ("batch_sizes", "message"),
    [
        ((1, 65), r"batch size 65 .*\(64\)"),
        ((), "expected one"),
        ((0, 1), "positive integers"),
        ((-4,), "positive integers"),
    ],
)
def test_batch_sizes_out_of_range_are_refused(batch_sizes: tuple[int, ...], message: str) -> None:
    check_batch_sizes((1, 64), limit=64)
    with pytest.raises(ConfigError, match=message):
        check_batch_sizes(batch_sizes, limit=64)


def cost(busiest: float, lag_mean_ms: float | None = None, held_mean_ms: float = 0.0) -> ClientCost:
    return ClientCost(cpu_ms=0.05, busiest=busiest, send_ms=0.05, lag_mean_ms=lag_mean_ms, held_mean_ms=held_mean_ms)


def test_client_with_time_to_spare_is_no_bottleneck() -> None:
    assert bottleneck(cost(0.5), mean_ms=2, num_processes=1) == ""
    assert bottleneck(cost(0.5, lag_mean_ms=0.1), mean_ms=0.3, num_processes=1) == ""
    assert bottleneck(cost(0.5, lag_mean_ms=5), mean_ms=100, num_processes=1) == ""


def test_client_that_waits_for_a_full_server_is_no_bottleneck() -> None:
    assert bottleneck(cost(0.5, lag_mean_ms=50, held_mean_ms=49.5), mean_ms=60, num_processes=1) == ""
    assert "requests were sent 20.0 ms late" in bottleneck(
        cost(0.5, lag_mean_ms=50, held_mean_ms=30), mean_ms=60, num_processes=1
    )


def test_busy_or_late_client_is_a_bottleneck() -> None:
    assert "used 95% of a core. Raise --processes above 2" in bottleneck(cost(0.95), mean_ms=2, num_processes=2)
    assert "sent 5.0 ms late on average, at a mean latency of 8.0 ms" in bottleneck(
        cost(0.5, 5), mean_ms=8, num_processes=1
    )
