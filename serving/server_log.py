"""What a server says: kept in a file, or only its end, which is enough to tell why it failed."""

import os
import threading
from pathlib import Path
from typing import Protocol

from workflows.errors import ServerError

_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_LAST_WORDS_TIMEOUT_S = 0.5


class ServerLog(Protocol):
    """Where a process writes what it says."""

    def fileno(self) -> int:
        """To be given to the process as its standard error."""

    def release(self) -> None:
        """The process has it, and is now the only one who writes."""

    def text(self) -> str:
        """What it has said so far, or the end of it."""

    def close(self) -> None:
        """The process has ended."""


class FileLog:
    """A file that stays.

    Args:
        path: made or emptied, its directory too.

    Raises:
        ServerError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")  # so that it may be emptied while it is written
            self._file.truncate(0)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ServerError(f"the log {path} cannot be written ({reason}). Choose another path.") from None

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        pass

    def text(self) -> str:
        begin = max(0, os.fstat(self.fileno()).st_size - _MOST_BYTES)
        return os.pread(self.fileno(), _MOST_BYTES, begin).decode("utf-8", errors="replace")

    def close(self) -> None:
        self._file.close()


class PipeLog:
    """The last megabyte, in memory."""

    def __init__(self) -> None:
        self._end = b""
        reading, self._writing = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True, name="rankline-server-log")
        self._reader.start()

    def fileno(self) -> int:
        return self._writing

    def release(self) -> None:
        os.close(self._writing)

    def text(self) -> str:
        """See `ServerLog`; waits a moment for the last words of a process that has ended."""
        self._reader.join(_LAST_WORDS_TIMEOUT_S)
        return self._end.decode("utf-8", errors="replace")

    def close(self) -> None:
        self._reader.join(_LAST_WORDS_TIMEOUT_S)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while part := pipe.read(_READ_BYTES):
                self._end = (self._end + part)[-_MOST_BYTES:]
