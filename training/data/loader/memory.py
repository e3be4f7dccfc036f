"""Memory limits of loaders."""

from pathlib import Path

import psutil
from dask.utils import parse_bytes

from rankline.workflows.core.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")


def buffer_bytes(size: float | str) -> int:
    """Convert a buffer size to bytes: a fraction of the available memory if below 1, a number of bytes, or a string
    such as "512MB".
    """
    try:
        number = float(size) if _is_number(size) else float(parse_bytes(size))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(
            f'buffer_size is {size!r}, expected a fraction below 1, a number of bytes, or a size such as "512MB".'
        )
    return max(1, int(number if number >= 1 else number * available_bytes()))


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return how many bytes this process can still allocate, as limited by the machine and its container.

    Args:
        cgroup: directory of the process's cgroup, version 2. Its page cache can be reclaimed and counts as available.
    """
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        taken = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        taken -= int(statistics["inactive_file"])
    except (OSError, ValueError, KeyError):  # no cgroup v2, or "max": no limit
        return available
    return max(1, min(available, limit - taken))


def _is_number(size: float | str) -> bool:
    try:
        float(size)
    except ValueError:
        if not size[:1].isdigit():  # type: ignore[index]  # always text; parse_bytes reads "" and "MB" as 1
            raise
        return False
    return True
