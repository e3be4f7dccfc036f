from pathlib import Path
from typing import Any

import pytest

from rankline.serving.loadtest.config import LoadConfig, Slo
from rankline.serving.loadtest.generator.arrivals import ConstantArrivals, PoissonArrivals, TraceArrivals
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_requests": 0}, "min_requests is 0, expected more than 0"),
        ({"warmup_s": -1}, "warmup_s is -1, expected at least 0"),
        ({"rate": (100, 0)}, r"rate is \[100, 0\], expected positive integers\."),
        ({"concurrency": ()}, "no load is specified"),
        ({"inputs": "random"}, "unknown inputs 'random'. Available: heldout, generated"),
        ({"transport": "pigeon"}, "unknown transport 'pigeon'. Available: http2, grpcio"),
        ({"time_limit_s": 1.0}, r"time_limit_s is 1, expected at least min_duration_s \(3"),
        ({"slo": "p99"}, "slo is 'p99', expected a percentile.*p99=10ms"),
        ({"slo": "p99=10ms", "rate": (5,)}, "cannot be combined"),
        ({"rate": (5,), "concurrency": (4,)}, r"concurrency is \[4\], but a rate, slo or file"),
        ({"slo": "p99=10ms", "concurrency": (1, 4)}, r"concurrency is \[1, 4\], but a rate, slo or file"),
        ({"arrivals": "trace.csv", "rate": (5,)}, "trace.csv already sets the rate"),
        (
            {"arrivals": "possion", "rate": (5,)},
            "arrivals is 'possion', expected constant, poisson or a file of arrival times",
        ),
        ({"arrivals": "constant"}, "arrivals require a rate or an slo. Pass --rate."),
    ],
)
def test_load_config_refuses_what_cannot_be_measured(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoadConfig(**change)


@pytest.mark.parametrize(
    ("text", "metric", "level", "bound_ms"),
    [("p99=10ms", "p99_ms", 0.99, 10), ("p99.9 = 0.5s", "p999_ms", 0.999, 500), ("p50=250us", "p50_ms", 0.5, 0.25)],
)
def test_slo_is_parsed_with_its_unit(text: str, metric: str, level: float, bound_ms: float) -> None:
    assert Slo.parse(text) == Slo(metric=metric, level=level, bound_ms=bound_ms)


@pytest.mark.parametrize("text", ["p98=10ms", "p99=10", "p99=0ms", "p99<10ms", "", "p99=-1ms"])
def test_slo_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a percentile"):
        Slo.parse(text)


def test_arrivals_are_chosen_by_name_or_file(tmp_path: Path) -> None:
    assert LoadConfig(arrivals="constant", rate=(5,)).arrivals_at(5) == ConstantArrivals(rate_per_s=5)
    assert LoadConfig(seed=3).arrivals_at(5) == PoissonArrivals(rate_per_s=5, seed=3)
    (tmp_path / "trace").write_text("1\n2\n")
    config = LoadConfig(arrivals=str(tmp_path / "trace"))
    assert config.is_trace
    assert config.arrivals_at(5) == TraceArrivals(times_s=(1.0, 2.0))
