"""Memory that is freed: kept for the next batch."""

import subprocess
import sys

_BATCHES = """
import resource, sys
from contextlib import nullcontext
import numpy as np
import psutil
from rankline.workflows.core.allocator import freed_memory_kept, keep_freed_memory

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


def test_the_next_batch_uses_the_same_memory() -> None:
    without, given_back = _faults_and_kept_bytes()
    for_good, kept = _faults_and_kept_bytes("keep")
    in_block, after_block = _faults_and_kept_bytes("block")
    assert max(for_good, in_block) * 10 < without
    assert max(given_back, after_block) < 40_000_000 < kept
