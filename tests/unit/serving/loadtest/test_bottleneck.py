from rankline.serving.loadtest.runs import ClientCost, bottleneck


def cost(busiest: float, lag_mean_ms: float | None = None, held_mean_ms: float = 0.0) -> ClientCost:
    return ClientCost(cpu_ms=0.05, busiest=busiest, send_ms=0.05, lag_mean_ms=lag_mean_ms, held_mean_ms=held_mean_ms)


def test_a_client_with_time_to_spare_is_no_bottleneck() -> None:
    assert bottleneck(cost(0.5), mean_ms=2, num_processes=1) == ""
    assert bottleneck(cost(0.5, lag_mean_ms=0.1), mean_ms=0.3, num_processes=1) == ""
    assert bottleneck(cost(0.5, lag_mean_ms=5), mean_ms=100, num_processes=1) == ""


def test_a_client_that_waits_for_a_full_server_is_no_bottleneck() -> None:
    assert bottleneck(cost(0.5, lag_mean_ms=50, held_mean_ms=49.5), mean_ms=60, num_processes=1) == ""
    assert "requests were sent 20.0 ms late" in bottleneck(
        cost(0.5, lag_mean_ms=50, held_mean_ms=30), mean_ms=60, num_processes=1
    )


def test_a_busy_or_a_late_client_is_one() -> None:
    assert "used 95% of a core. Raise --processes above 2" in bottleneck(cost(0.95), mean_ms=2, num_processes=2)
    assert "sent 5.0 ms late on average, at a mean latency of 8.0 ms" in bottleneck(
        cost(0.5, 5), mean_ms=8, num_processes=1
    )
