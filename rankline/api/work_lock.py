"""Keeps commands apart that write to the same folder, such as work/movielens.

Without the lock, a command could export or report the model of another one that ran at the same time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from rankline.workflows.core.errors import ArtifactError

_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())


@contextmanager
def working_in(directory: Path) -> Iterator[None]:
    """Lock a folder of artifacts during the block. Within one thread, blocks for the same folder can be nested.

    The directory itself is locked, so that no file is left in it, and the lock never outlives the process. A directory
    that does not exist is created, and removed at the end if it is still empty. Nothing is locked where this is not
    possible, such as on some network file systems.

    Raises:
        ArtifactError: another command holds the lock.
    """
    found = directory.resolve()
    if found in _held.get():
        yield
        return
    is_new = not directory.exists()
    with suppress(OSError):  # whatever writes to the directory says what is wrong
        directory.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(directory)
    before = _held.set(_held.get() | {found})
    try:
        yield
    finally:
        _held.reset(before)
        if is_new:
            with suppress(OSError):  # it has content
                directory.rmdir()
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for child processes that inherited the descriptor
            os.close(descriptor)


def _locked(directory: Path) -> int | None:
    """Return the descriptor that holds the lock, or None if there is no directory or its file system has no locks."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise ArtifactError(
            f"another rankline command is working in {directory}. Wait for it, or pass another --work-dir."
        ) from None
    except OSError:
        os.close(descriptor)
        return None
