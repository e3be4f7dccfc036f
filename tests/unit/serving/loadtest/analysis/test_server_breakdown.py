"""Where the time of a request goes, by Triton's statistics before and after."""

import pytest

from rankline.serving.loadtest.server_breakdown import Statistics

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
def test_parts_add_up_and_the_network_takes_no_negative_time(
    statistics: Statistics, latency_ms: float, client_ms: float, num_requests: int, expected: dict[str, float] | None
) -> None:
    found = statistics.breakdown(
        {"m": BEFORE}, {"m": AFTER}, num_requests=num_requests, latency_ms=latency_ms, client_ms=client_ms
    )
    if expected is None:
        assert found is None
        return
    assert found is not None
    parts = found.parts_ms()
    assert {name: parts[name] for name in expected} == pytest.approx(expected)
    assert sum(parts.values()) == pytest.approx(latency_ms)
