"""Memory that is freed: kept for the next batch."""

import subprocess
import sys

_BATCHES = """
import resource, sys
import numpy as np
from workflows.allocator import keep_freed_memory

def batch():
    np.ones(80_000_000, dtype=np.uint8)  # larger than what glibc keeps by itself

if "keep" in sys.argv:
    keep_freed_memory()
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*args: str) -> int:
    done = subprocess.run([sys.executable, "-c", _BATCHES, *args], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_the_next_batch_uses_the_same_memory() -> None:
    assert _faults("keep") * 10 < _faults()
