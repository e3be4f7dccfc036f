"""A measurement: its batch sizes, why it has no latency, and whether its client was the bottleneck."""

from collections import Counter

import pytest

from rankline.serving.loadtest.generator.worker_pool import Outcome
from rankline.serving.loadtest.measurement import _failure
from rankline.serving.loadtest.runner import check_batch_sizes
from rankline.serving.loadtest.runs import ClientCost, Load, Run, bottleneck
from rankline.serving.loadtest.stats.counters import SliceRecord
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize(
    ("batch_sizes", "message"),
    [((1, 65), r"batch size 65 .*\(64\)"), ((), "at least one"), ((0, 1), "at least 1"), ((-4,), "at least 1")],
)
def test_batch_sizes_out_of_range_are_refused(batch_sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_batch_sizes(batch_sizes, limit=64)


def test_batch_sizes_up_to_the_limit_pass() -> None:
    check_batch_sizes((1, 64), limit=64)


@pytest.mark.parametrize(
    ("record", "failure", "message"),
    [
        (SliceRecord(num_due=9), "", "nothing was answered in 0.25 s: no errors either."),
        (SliceRecord(errors=Counter({"UNAVAILABLE": 3})), "", "nothing was answered in 0.25 s: {'UNAVAILABLE': 3}."),
        (SliceRecord(num_due=9, num_answered=7), "", "no request that was due in these 0.25 s was answered in them"),
        (SliceRecord(num_answered=7), "the connection ended", "the connection ended after 0.25 s; the figures are"),
    ],
)
def test_measurement_without_latency_says_why(record: SliceRecord, failure: str, message: str) -> None:
    run = Run(load=Load(batch_size=1, rate_per_s=2e5), slices=(record,))
    assert _failure(run, Outcome(slices=(record,), samples=(), failure=failure)).startswith(message)


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
