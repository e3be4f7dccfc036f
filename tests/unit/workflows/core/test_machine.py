"""The machine: how busy it is, and memory that is kept for the next batch."""

import subprocess
import sys
from pathlib import Path

import pytest

from rankline.workflows.core.machine import busyness

QUIET = (1000, 0, 100, 9000, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        ((2, 0, 1, 97, 0, 0, 0, 0), ""),
        ((60, 5, 10, 20, 0, 0, 0, 5), "load 4.2, 75% of the CPUs in use, 5% stolen"),
        ((0, 0, 0, 97, 0, 0, 0, 3), "load 4.2, 0% of the CPUs in use, 3% stolen"),
        ((0, 0, 0, 50, 50, 0, 0, 0), ""),  # waiting for a disk
    ],
)
def test_busyness_names_what_others_take(tmp_path: Path, spent: tuple[int, ...], said: str) -> None:
    state = tmp_path / "stat"

    def write(ticks: tuple[int, ...]) -> None:
        state.write_text(f"cpu  {' '.join(map(str, ticks))} 0 0\ncpu0 1 2 3\n")

    write(QUIET)
    later = tuple(a + b for a, b in zip(QUIET, spent, strict=True))
    assert busyness(state, sleep=lambda _: write(later), load=lambda: (4.2, 1.0, 1.0)) == said


def test_system_without_counters_is_taken_for_quiet(tmp_path: Path) -> None:
    assert busyness(tmp_path / "stat", sleep=lambda _: None) == ""


_BATCHES = """
import resource, sys
from contextlib import nullcontext
import numpy as np
import psutil
from rankline.workflows.core.machine import freed_memory_kept, keep_freed_memory

def batch():
    np.ones(80_000_000, dtype=np.uint8)  # larger than what glibc keeps by itself

if "keep" in sys.argv:
    keep_freed_memory()
idle = psutil.Process().memory_info().rss
with freed_memory_kept() if "block" in sys.argv else nullcontext():
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        batch()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults, psutil.Process().memory_info().rss - idle)
"""


def _faults_and_kept_bytes(*args: str) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", _BATCHES, *args], capture_output=True, text=True, check=True)
    faults, kept = map(int, done.stdout.split())
    return faults, kept


def test_next_batch_uses_the_same_memory() -> None:
    without, given_back = _faults_and_kept_bytes()
    for_good, kept = _faults_and_kept_bytes("keep")
    in_block, after_block = _faults_and_kept_bytes("block")
    assert max(for_good, in_block) * 10 < without
    assert max(given_back, after_block) < 40_000_000 < kept
