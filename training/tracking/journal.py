"""What a run has logged and its store may not have yet. Imports no MLflow.

    ID/
        journal        a line for each thing that was logged: CRC-32 of what follows, and JSON
        files/N/       files and directories that were logged, as hard links where the file system has them
        delivered      how much of the journal the store has, and the id of the run there
        lock           held by who writes or delivers it

A line is written before whoever logs goes on, so it outlives the process; it is on the disk before it is delivered.
"""

import json
import os
import re
import shutil
import threading
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.storage.artifacts import write_whole
from rankline.workflows.storage.atomic import remove, sync, sync_all

_JOURNAL, _FILES, _DELIVERED, _LOCK = "journal", "files", "delivered", "lock"
_ID = re.compile("[0-9a-f]{32}")


class Entry(NamedTuple):
    """A thing that was logged.

    Attributes:
        kind: what it is.
        content: plain values.
        end: where the next line begins, in bytes.
    """

    kind: str
    content: dict[str, Any]
    end: int


class Delivered(NamedTuple):
    """How far the store is.

    Attributes:
        end: bytes of the journal that it has.
        run_id: of the run there; empty as long as there is none.
        failure: why it has no more; empty where that is not known.
    """

    end: int = 0
    run_id: str = ""
    failure: str = ""


class InUse(ArtifactError):  # noqa: N818  (a state, not a fault)
    """Another process writes or delivers a journal."""


class Journal:
    """The journal of one run, which is held against others until it is closed.

    Args:
        directory: of this journal; made if it is not there.

    Raises:
        InUse: somebody else has it.
        ArtifactError: it is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(directory / _LOCK, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise InUse(f"{directory} is in use by another process.") from None
        self._guard, self._unsynced = threading.Lock(), list[Path]()
        self._file = os.open(directory / _JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            entries = list(self.read())
            os.ftruncate(self._file, entries[-1].end if entries else 0)  # what a power cut has left of a last line
        except BaseException:
            self.close()
            raise

    @classmethod
    def new(cls, journals: Path) -> "Journal":
        return cls(journals / uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """What the run is known by where the store has given it no id yet."""
        return self.directory.name

    @property
    def delivered(self) -> Delivered:
        """How far the store is."""
        return _delivered(self.directory)

    def note_delivered(self, delivered: Delivered) -> None:
        """Keep how far the store is."""
        write_whole(self.directory / _DELIVERED, (json.dumps(delivered._asdict()) + "\n").encode())

    def append(self, kind: str, **content: Any) -> None:
        """Write an entry.

        Raises:
            OSError: the disk is full, say; the journal is then as it was.
        """
        body = json.dumps({"kind": kind, **content}).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        with self._guard:
            before = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(f"{self.directory / _JOURNAL} took a part of a line: the disk is full.")
            except OSError:
                os.ftruncate(self._file, before)
                raise

    def keep(self, path: Path) -> str:
        """Keep a file or directory as it is now, under its own name."""
        folder = self.new_folder()
        if path.is_dir():
            shutil.copytree(path, folder / path.name, copy_function=_link)
        else:
            _link(path, folder / path.name)
        return (folder / path.name).relative_to(self.directory).as_posix()

    def new_folder(self) -> Path:
        """An empty directory for files that are logged."""
        with self._guard:
            folder = self.directory / _FILES / uuid.uuid4().hex[:8]
            folder.mkdir(parents=True)
            self._unsynced.append(folder)
        return folder

    def sync(self) -> None:
        """Wait until all entries, and the files that they name, are on the disk."""
        with self._guard:
            folders, self._unsynced = self._unsynced, []
        for folder in folders:
            sync_all(folder)
        os.fsync(self._file)
        sync(self.directory)

    def read(self, begin: int = 0) -> Iterator[Entry]:
        """The entries from a byte on.

        Raises:
            ArtifactError: a line is damaged, and whole ones come after it.
        """
        with (self.directory / _JOURNAL).open("rb") as file:
            file.seek(begin)
            lines = file.read().splitlines(keepends=True)
        end = begin
        for number, line in enumerate(lines):
            found = _parsed(line)
            if found is None:
                if any(_parsed(later) for later in lines[number + 1 :]):
                    raise ArtifactError(
                        f"{self.directory / _JOURNAL} is damaged at byte {end:,}. What comes before was delivered; "
                        f"delete {self.directory} to give up the rest."
                    )
                return
            end += len(line)
            yield Entry(found.pop("kind"), found, end)

    def close(self) -> None:
        os.close(self._file)
        self._lock.release()

    def remove(self) -> None:
        os.close(self._file)
        try:
            remove(self.directory)
        finally:
            self._lock.release()


class Left(NamedTuple):
    """A journal that was not delivered to its end."""

    directory: Path
    delivered: Delivered


def left_in(journals: Path) -> list[Left]:
    """The journals in a directory that are not fully delivered, those of running runs included."""
    directories = (path for path in sorted(journals.glob("*")) if _ID.fullmatch(path.name))
    return [Left(path, _delivered(path)) for path in directories if (path / _JOURNAL).exists()]


def undelivered(directory: Path, failure: str) -> str:
    """What there is to say of a journal that was not delivered."""
    why = f": {failure}" if failure else ""
    return f"MLflow has not got all of the run in {directory}{why}. Nothing is lost: rankline sync delivers it."


def journal_of(journals: Path, run_id: str) -> Journal | None:
    """What is left of the journal of a run; None if its store has all of it.

    Raises:
        InUse: the run is still going on.
    """
    for left in left_in(journals):
        if run_id in (left.directory.name, left.delivered.run_id):
            return Journal(left.directory)
    return None


def _delivered(directory: Path) -> Delivered:
    """A mark that cannot be read is none: what is delivered again has no other effect."""
    try:
        return Delivered(**json.loads((directory / _DELIVERED).read_bytes()))
    except (OSError, ValueError, TypeError):
        return Delivered()


def _parsed(line: bytes) -> dict[str, Any] | None:
    checksum, _, body = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    found: dict[str, Any] = json.loads(body)
    return found


def _link(source: str | Path, target: str | Path) -> str:
    """The same file by another name: artifacts are replaced whole, so it stays as it is."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return str(target)
