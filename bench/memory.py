"""How much memory a process has had."""

from pathlib import Path


def peak_bytes(pid: int | None = None) -> int:
    """The most memory that a process has had; `ru_maxrss` would count what its parent had.

    Args:
        pid: of the process; None for this one.
    """
    status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
