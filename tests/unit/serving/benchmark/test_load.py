import pytest

from serving.benchmark.load import LoadConfig
from workflows.errors import ConfigError


@pytest.mark.parametrize("change", [{"min_requests": 0}, {"warmup_requests": -1}])
def test_refuses_a_measurement_of_nothing(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected at least 1 and 0"):
        LoadConfig(**change)
