"""Crash-safe file operations, which sync a file's contents before the directory entry that refers to it.

A rename may reach the disk before the contents of the renamed file. A replacement is therefore synced before the
rename, and the replaced file is deleted only after the rename is on disk.
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
    """Wait until a file's contents, or the entries of a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised by file systems that cannot sync directories
            raise
    finally:
        os.close(descriptor)


def sync_all(directory: Path) -> None:
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


@contextmanager
def staging_for(target: Path) -> Iterator[Path]:
    """Yield an empty hidden directory next to `target`, and delete the directory after the block.

    Leftovers of killed processes for the same target are removed first.
    """
    prefix = f".{target.name}{_MARK}"
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{escape(prefix)}*"):
        with suppress(OSError), _locked(left, fcntl.LOCK_NB):
            shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as at_end:
        yield _made(prefix, target.parent, at_end)


def remove(directory: Path) -> None:
    """Remove a directory atomically: an interrupted call leaves either all or none of it visible."""
    with staging_for(directory) as staging:
        directory.rename(staging)
        sync(directory.parent)


class DirectoryLock:
    """A lock that marks a directory as in use until `close` is called or the process ends; see `is_in_use`.

    The directory may be on a read-only file system. Raises OSError if it does not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None  # set before `os.open` may fail, because `close` reads it
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: `is_in_use` returns False there
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self.close()


def is_in_use(directory: Path) -> bool:
    """Whether a process on this machine holds a `DirectoryLock` on the directory."""
    try:
        with _locked(directory, fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False


def _made(prefix: str, parent: Path, at_end: ExitStack) -> Path:
    """Create a directory and lock it, so that no other process removes it as a leftover."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        at_end.callback(shutil.rmtree, made, ignore_errors=True)
        at_end.enter_context(_locked(made))
        if made.is_dir():  # no other process removed it before it was locked
            made.chmod(0o755)
            return made


@contextmanager
def _locked(directory: Path, wait: int = 0) -> Iterator[None]:
    """Hold an exclusive lock on a directory during the block. The lock never outlives the process.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is LOCK_NB.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
        yield
    finally:
        os.close(descriptor)
