"""Server logs, in a file or in memory, and extraction of the cause of a failure."""

import os
import re
import threading
from itertools import dropwhile
from pathlib import Path
from typing import Protocol

from rankline.workflows.core.errors import ServerError

_MAX_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_LAST_WORDS_TIMEOUT_S = 0.5
_MODEL_FAILURES = (
    re.compile(r"failed to load '([^']+)' version \d+: (.+?)\"?$", re.MULTILINE),
    re.compile(r"Poll failed for model directory '([^']+)': (.+?)\"?$", re.MULTILINE),
)
_STATUS = re.compile(r"^(Internal|Invalid argument|Not found|Unavailable|Unsupported): ")
_FRAME = re.compile(r"^ *\d+# (.+) in (\S+)$", re.MULTILINE)
_HANDLER_FRAMES, _MAX_PLACES = 2, 3  # the first frames print the stack
_C_LIBRARY = re.compile(r"lib(c|gcc_s|stdc\+\+)\.so\b")  # its innermost frames abort or copy memory
# Errors, except the ones that every start without a GPU logs.
_ERROR = re.compile(
    r'^E\d{4} .*?\] (?!"CudaDriverHelper has not|"?unable to create stream for)"?(.+?)"?$', re.MULTILINE
)


class ServerLog(Protocol):
    """Sink for the output of a process."""

    def fileno(self) -> int:
        """Return the file descriptor that becomes the process's standard error."""

    def release(self) -> None:
        """Close our copy of the descriptor, once the process has its own."""

    def text(self) -> str:
        """Return the output so far, or only the last part if it is too long."""

    def close(self) -> None:
        """Free the resources of the log, after the process has exited."""


class FileLog:
    """A persistent log file. Opening it creates its directory if needed and truncates any existing file.

    Raises:
        ServerError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")  # append mode, so that the file may be truncated while it is written
            self._file.truncate(0)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ServerError(f"the log {path} cannot be written ({reason}). Choose another path.") from None

    def fileno(self) -> int:
        return self._file.fileno()

    def release(self) -> None:
        pass

    def text(self) -> str:
        begin = max(0, os.fstat(self.fileno()).st_size - _MAX_BYTES)
        return os.pread(self.fileno(), _MAX_BYTES, begin).decode("utf-8", errors="replace")

    def close(self) -> None:
        self._file.close()


class PipeLog:
    """An in-memory log of the last megabyte of output."""

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
        """Wait briefly for the last output of a process that has exited, and return the output."""
        self._reader.join(_LAST_WORDS_TIMEOUT_S)
        return self._end.decode("utf-8", errors="replace")

    def close(self) -> None:
        self._reader.join(_LAST_WORDS_TIMEOUT_S)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while part := pipe.read(_READ_BYTES):
                self._end = (self._end + part)[-_MAX_BYTES:]


def failure_reason(log: str) -> str:
    """Return why the start failed: one line per model that failed to load, or else the log's last error or line."""
    if models := {name: reason for pattern in _MODEL_FAILURES for name, reason in pattern.findall(log)}:
        return "\n".join(f"Model {name!r}: {_without_traceback(reason)}" for name, reason in models.items())
    lines = _ERROR.findall(log) or log.strip().splitlines()
    return str(lines[-1]) if lines else "It wrote no log."


def crash_site(log: str) -> str:
    """Return where tritonserver crashed; "" if there is no stack trace.

    The result lists the innermost frames outside the C library, each with its function, if known, and its file.
    """
    frames = _FRAME.findall(log.rpartition("Signal (")[2])[_HANDLER_FRAMES:]
    frames = list(dropwhile(lambda frame: _C_LIBRARY.match(Path(frame[1]).name), frames)) or frames
    places = [Path(file).name if name.startswith("0x") else f"{name} ({Path(file).name})" for name, file in frames]
    return ", called by ".join(list(dict.fromkeys(places))[:_MAX_PLACES])


def _without_traceback(reason: str) -> str:
    message = reason.partition("\\n\\nAt:")[0]  # the log has newlines escaped
    return _STATUS.sub("", message).removeprefix("TritonModelException: ")
