import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


_STATE = Path("/proc/stat")
_MOST_OTHERS, _MOST_STOLEN = 0.1, 0.01  # shares of the total CPU time


def busyness(
    state: Path = _STATE,
    *,
    sleep: Callable[[float], None] = time.sleep,
    load: Callable[[], tuple[float, ...]] = os.getloadavg,
) -> str:
    """Return a sentence about other load on the machine, empty if it is idle. Waits half a second."""
    with suppress(OSError, ValueError, IndexError):
        before = _ticks(state)
        sleep(0.5)
        after = _ticks(state)
        all_ticks, idle, stolen = (max(now - then, 0) for now, then in zip(after, before, strict=True))
        others = (all_ticks - idle - stolen) / max(all_ticks, 1)
        share_stolen = stolen / max(all_ticks, 1)
        if others >= _MOST_OTHERS or share_stolen >= _MOST_STOLEN:
            return f"load {load()[0]:.1f}, {others:.0%} of the processors in use, {share_stolen:.0%} stolen"
    return ""


def _ticks(state: Path) -> tuple[int, int, int]:
    """Return total CPU ticks, idle ticks, and ticks stolen by other virtual machines on the host."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, state.read_text().split("\n", 1)[0].split()[1:9])
    return user + nice + system + idle + iowait + irq + softirq + steal, idle + iowait, steal
