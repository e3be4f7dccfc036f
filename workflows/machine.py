"""What a figure was measured on."""

import platform
from contextlib import suppress
from pathlib import Path


def cpu_name() -> str:
    """The processor's name as Linux has it, else what Python knows."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
