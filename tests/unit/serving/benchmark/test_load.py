from collections import Counter

import pytest

from serving.benchmark.config import Slo
from serving.benchmark.load import check_batch_sizes, holds_slo
from serving.benchmark.report import LoadResult
from serving.benchmark.runs import Load
from tests.support.reports import result_of
from workflows.errors import ConfigError


def result(latency_ms: float, *, answered: int = 400, **errors: int) -> LoadResult:
    counts = {"num_due": 400, "num_answered": 400, "errors": Counter(errors)}
    return result_of(Load(batch_size=1, rate_per_s=100), [latency_ms] * answered, counts=counts)


def test_a_bound_holds_only_for_a_server_that_keeps_up_and_answers() -> None:
    slo = Slo.parse("p99=10ms")
    assert holds_slo(result(9), slo)
    assert holds_slo(result(9, answered=397, UNAVAILABLE=3), slo)
    assert not holds_slo(result(11), slo)
    assert not holds_slo(result(9, answered=395, UNAVAILABLE=5), slo)
    assert not holds_slo(result(9, answered=370), slo)  # the others have not come back
    assert not holds_slo(result(9, answered=300), slo)  # too few for a p99


def test_batch_sizes_up_to_the_limit_pass() -> None:
    check_batch_sizes((1, 64), limit=64)
    with pytest.raises(ConfigError, match=r"batch size 65 is larger than the model takes \(64\)"):
        check_batch_sizes((1, 65), limit=64)


@pytest.mark.parametrize("batch_sizes", [(), (0, 1), (-4,)])
def test_refuses_batch_sizes_that_hold_no_rows(batch_sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected at least one, each at least 1"):
        check_batch_sizes(batch_sizes, limit=64)
