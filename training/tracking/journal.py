"""Journals of runs, which store logged entries until they are uploaded. Importing this module does not import MLflow.

    ID/
        journal        a line per entry: CRC-32 of the rest of the line, and JSON
        files/N/       logged files and directories, as hard links if the file system supports them
        delivered      position in the journal up to which the store has the entries, and the id of the run there
        lock           held by the process that writes or uploads the journal

A line is written before the logging call returns, so it survives the process. It is synced to disk before the upload.
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
    """A logged entry; `end` is the offset of the next line in the journal."""

    kind: str
    content: dict[str, Any]
    end: int


class Delivered(NamedTuple):
    """Progress of the upload to the store.

    Attributes:
        end: bytes of the journal that the store has.
        run_id: id of the run in the store; empty if the run does not exist yet.
        failure: why the upload stopped; empty if unknown.
    """

    end: int = 0
    run_id: str = ""
    failure: str = ""


class InUse(ArtifactError):  # noqa: N818  (a state, not a fault)
    """Raised if another process is writing or uploading the journal."""


class Journal:
    """The journal of a run, locked until it is closed. The directory is created if missing."""

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
            os.ftruncate(self._file, entries[-1].end if entries else 0)  # drops a last line cut off by a power failure
        except BaseException:
            self.close()
            raise

    @classmethod
    def new(cls, journals: Path) -> "Journal":
        return cls(journals / uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """Id of the run until the store assigns one."""
        return self.directory.name

    @property
    def delivered(self) -> Delivered:
        return _delivered(self.directory)

    def note_delivered(self, delivered: Delivered) -> None:
        write_whole(self.directory / _DELIVERED, (json.dumps(delivered._asdict()) + "\n").encode())

    def append(self, kind: str, **content: Any) -> None:
        body = json.dumps({"kind": kind, **content}).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        with self._guard:
            before = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(
                        f"{self.directory / _JOURNAL} was only partly written because the disk is full. Free some "
                        "space."
                    )
            except OSError:
                os.ftruncate(self._file, before)
                raise

    def keep(self, path: Path) -> str:
        """Store a file or directory in the journal, as hard links if possible, and return its relative path."""
        folder = self.new_folder()
        if path.is_dir():
            shutil.copytree(path, folder / path.name, copy_function=_link)
        else:
            _link(path, folder / path.name)
        return (folder / path.name).relative_to(self.directory).as_posix()

    def new_folder(self) -> Path:
        with self._guard:
            folder = self.directory / _FILES / uuid.uuid4().hex[:8]
            folder.mkdir(parents=True)
            self._unsynced.append(folder)
        return folder

    def sync(self) -> None:
        """Sync all entries to disk, together with the files that they reference."""
        with self._guard:
            folders, self._unsynced = self._unsynced, []
        for folder in folders:
            sync_all(folder)
        os.fsync(self._file)
        sync(self.directory)

    def read(self, begin: int = 0) -> Iterator[Entry]:
        with (self.directory / _JOURNAL).open("rb") as file:
            file.seek(begin)
            lines = file.read().splitlines(keepends=True)
        end = begin
        for number, line in enumerate(lines):
            found = _parsed(line)
            if found is None:
                if any(_parsed(later) for later in lines[number + 1 :]):
                    raise ArtifactError(
                        f"{self.directory / _JOURNAL} is damaged at byte {end:,}. Everything before it was "
                        f"delivered; delete {self.directory} to discard the rest."
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
    directory: Path
    delivered: Delivered


def left_in(journals: Path) -> list[Left]:
    """Return the journals in a directory that have not been fully uploaded, including those of active runs."""
    directories = (path for path in sorted(journals.glob("*")) if _ID.fullmatch(path.name))
    return [Left(path, _delivered(path)) for path in directories if (path / _JOURNAL).exists()]


def undelivered(directory: Path, failure: str) -> str:
    why = f": {failure}" if failure else ""
    return (
        f"MLflow has not received the complete run in {directory}{why}. Nothing is lost; run rankline sync to deliver "
        "it."
    )


def journal_of(journals: Path, run_id: str) -> Journal | None:
    """Return a run's journal if it has not been fully uploaded, otherwise None."""
    for left in left_in(journals):
        if run_id in (left.directory.name, left.delivered.run_id):
            return Journal(left.directory)
    return None


def _delivered(directory: Path) -> Delivered:
    """Read the progress of the upload. An unreadable file counts as no progress, because uploads are idempotent."""
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
    """Hard-link a file, or copy it if links are unsupported. Links are safe: artifacts are never modified in place."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return str(target)
