"""What is on the disk when the power fails: files, then the names that lead to them, in this order.

A rename may reach the disk before the bytes of the file that it names. So whatever takes the place of something is
synced first, and what it replaces goes only when the new name is on the disk.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path

_MARK = ".rankline-"


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that syncs no directories
            raise
    finally:
        os.close(descriptor)


def sync_all(directory: Path) -> None:
    """Wait until everything below a directory is on the disk, and the directory."""
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


@contextmanager
def staging_for(target: Path) -> Iterator[Path]:
    """An empty hidden directory beside `target`, which is gone when the block ends, whatever it holds by then.

    What a process that was killed in such a block has left beside the same target is removed first.
    """
    prefix = f".{target.name}{_MARK}"
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{escape(prefix)}*"):
        with suppress(OSError), _locked(left, fcntl.LOCK_NB):
            shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as at_end:
        yield _made(prefix, target.parent, at_end)


def remove(directory: Path) -> None:
    """Remove a directory whole: whenever this is cut off, it is all there or nobody sees it."""
    with staging_for(directory) as staging:
        directory.rename(staging)
        sync(directory.parent)


class Use:
    """A directory that is in use, as `is_used` sees, until this is closed or this process has ended.

    Args:
        directory: which may be on a file system that is mounted for reading alone.

    Raises:
        OSError: there is none.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None  # `close` finds it, also where there is no directory
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: nobody sees it there
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self.close()


def is_used(directory: Path) -> bool:
    """Whether a process of this machine has a `Use` of a directory."""
    try:
        with _locked(directory, fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False


def _made(prefix: str, parent: Path, at_end: ExitStack) -> Path:
    """A new directory that is locked, so that nobody takes it for one that was left."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        at_end.callback(shutil.rmtree, made, ignore_errors=True)
        at_end.enter_context(_locked(made))
        if made.is_dir():  # nobody was faster than the lock
            made.chmod(0o755)
            return made


@contextmanager
def _locked(directory: Path, wait: int = 0) -> Iterator[None]:
    """Hold the lock of a directory, which ends with this process at the latest.

    Raises:
        BlockingIOError: it is held by another, and `wait` is LOCK_NB.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
        yield
    finally:
        os.close(descriptor)
