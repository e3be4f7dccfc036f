from pathlib import Path

import psutil
import pytest

from rankline.training.data.loader.memory import available_bytes, buffer_bytes
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize(
    ("size", "expected"), [("512MB", 512_000_000), ("64 MiB", 64 << 20), (4096, 4096), ("4096", 4096), (1, 1)]
)
def test_sizes_are_numbers_or_text(size: float | str, expected: int) -> None:
    assert buffer_bytes(size) == expected


@pytest.mark.parametrize("share", [0.25, "0.25"])
def test_a_share_is_of_the_memory_that_is_available(share: float | str) -> None:
    assert buffer_bytes(share) == pytest.approx(available_bytes() / 4, rel=0.2)
    assert available_bytes() <= psutil.virtual_memory().total


def test_a_container_has_what_its_limit_leaves_beside_what_can_be_given_up(tmp_path: Path) -> None:
    for name, text in {"max": "1000000", "current": "900000", "stat": "anon 5\ninactive_file 600000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert available_bytes(tmp_path) == 1_000_000 - 300_000
    (tmp_path / "memory.max").write_text("max")
    assert available_bytes(tmp_path) > 1_000_000


@pytest.mark.parametrize("size", [0, -1, "much", "", "-3MB", float("nan"), float("inf"), "nan"])
def test_what_is_no_size_is_refused(size: float | str) -> None:
    with pytest.raises(ConfigError, match="buffer_size"):
        buffer_bytes(size)
