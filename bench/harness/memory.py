"""Peak memory of processes."""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def peak_bytes(pid: int | None = None) -> int:
    """Return the peak memory of a process; `ru_maxrss` would include its parent's."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def peak_above_imports(call: Callable[..., Any], *paths: Path) -> int:
    """Return the peak memory of a call in a separate process, above the memory of its module's imports."""
    program = [sys.executable, "-W", "ignore", "-m", __name__, call.__module__, call.__name__, *map(str, paths)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1])


def main(module: str, name: str, *paths: str) -> None:
    call = getattr(import_module(module), name)
    idle = peak_bytes()
    call(*map(Path, paths))
    print(peak_bytes() - idle)


if __name__ == "__main__":
    main(*sys.argv[1:])
