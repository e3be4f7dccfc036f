import pytest

from rankline.serving.loadtest.runner import check_batch_sizes
from rankline.workflows.core.errors import ConfigError


def test_batch_sizes_up_to_the_limit_pass() -> None:
    check_batch_sizes((1, 64), limit=64)
    with pytest.raises(ConfigError, match=r"batch size 65 is larger than the model takes \(64\)"):
        check_batch_sizes((1, 65), limit=64)


@pytest.mark.parametrize("batch_sizes", [(), (0, 1), (-4,)])
def test_refuses_batch_sizes_that_hold_no_rows(batch_sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected at least one, each at least 1"):
        check_batch_sizes(batch_sizes, limit=64)
