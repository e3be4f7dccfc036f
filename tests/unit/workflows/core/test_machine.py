"""How busy the machine is, from Linux's counters."""

from pathlib import Path

import pytest

from rankline.workflows.core.machine import busyness

QUIET = (1000, 0, 100, 9000, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ((2, 0, 1, 97, 0, 0, 0, 0), ""),
        ((60, 5, 10, 20, 0, 0, 0, 5), "load 4.2, 75% of the processors in use, 5% stolen"),
        ((0, 0, 0, 97, 0, 0, 0, 3), "load 4.2, 0% of the processors in use, 3% stolen"),
        ((0, 0, 0, 50, 50, 0, 0, 0), ""),  # waiting for a disk
    ],
)
def test_what_others_take_while_we_wait_is_said(tmp_path: Path, spent: tuple[int, ...], said: str) -> None:
    state = tmp_path / "stat"

    def write(ticks: tuple[int, ...]) -> None:
        state.write_text(f"cpu  {' '.join(map(str, ticks))} 0 0\ncpu0 1 2 3\n")

    write(QUIET)
    later = tuple(a + b for a, b in zip(QUIET, spent, strict=True))
    assert busyness(state, sleep=lambda _: write(later), load=lambda: (4.2, 1.0, 1.0)) == said


def test_a_system_without_counters_is_taken_for_quiet(tmp_path: Path) -> None:
    assert busyness(tmp_path / "stat", sleep=lambda _: None) == ""
