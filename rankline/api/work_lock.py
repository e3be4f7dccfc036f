"""Keeps commands apart that work in the same folder, such as work/movielens.

Without the lock, a command could export or report the model of another one that ran at the same time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from rankline.workflows.core.errors import ArtifactError

_LOCKS = Path("/proc/locks")

_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())


@contextmanager
def working_in(directory: Path, *, reads_only: bool = False) -> Iterator[None]:
    """Lock a folder of artifacts during the block. Within one thread, blocks for the same folder can be nested.

    The directory itself is locked, so that no file is left in it, and the lock never outlives the process. A directory
    that does not exist is created, unless the block only reads, and removed at the end if it is still empty. Nothing is
    locked where this is not possible, such as on some network file systems.

    Args:
        reads_only: several blocks that only read may run at the same time.

    Raises:
        ArtifactError: another command holds the lock.
    """
    found = directory.resolve()
    if found in _held.get():
        yield
        return
    is_new = not reads_only and _is_made(found)
    descriptor = _locked(directory, fcntl.LOCK_SH if reads_only else fcntl.LOCK_EX)
    before = _held.set(_held.get() | {found})
    try:
        yield
    finally:
        _held.reset(before)
        if is_new:
            with suppress(OSError):  # it has content
                found.rmdir()
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for child processes that inherited the descriptor
            os.close(descriptor)


def _is_made(directory: Path) -> bool:
    """Create a directory if it does not exist, and return whether this was needed and possible."""
    try:
        directory.mkdir(parents=True)
    except OSError:  # it exists, or whatever writes to it says what is wrong
        return False
    return True


def _locked(directory: Path, kind: int) -> int | None:
    """Return the descriptor that holds the lock, or None if there is no directory or its file system has no locks."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        process = _holder(descriptor)
        os.close(descriptor)
        raise ArtifactError(
            f"another rankline command is working in {directory}{f' (process {process})' if process else ''}. Wait for "
            "it, or pass another --work-dir."
        ) from None
    except OSError:
        os.close(descriptor)
        return None


def _holder(descriptor: int) -> int:
    """Return the id of a process that holds the lock, or 0 if unknown: not all file systems show their locks there."""
    status = os.fstat(descriptor)
    device, inode = status.st_dev, status.st_ino
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():  # 5: FLOCK  ADVISORY  WRITE 6501 fe:00:2672449 0 EOF
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place:
                return max(int(fields[4]), 0)
    return 0
