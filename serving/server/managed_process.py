"""Run a program through `launch.py`, so that it never outlives this process."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rankline.serving.server.logs import ServerLog
from rankline.workflows.storage.atomic import is_in_use

_YOUNG_S = 60.0  # `launch.py` locks its directory within this time


def new_home(program: str) -> Path:
    """Remove the working directories of killed processes, and return an unused path for that of `program`."""
    directory, prefix = Path(tempfile.gettempdir()), f"rankline-{program}-"
    remove_left(directory, prefix)
    return directory / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"


def remove_left(directory: Path, prefix: str) -> None:
    """Clean up after killed launchers: remove directories starting with `prefix` and shared memory named after them."""
    for home in directory.glob(f"{prefix}*"):
        with suppress(OSError):  # owned by another user, or gone
            found = home.stat()
            if found.st_uid != os.getuid() or found.st_mtime > time.time() - _YOUNG_S or is_in_use(home):
                continue
            for segment in Path("/dev/shm").glob(f"{home.name}*"):
                segment.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)


class Launched:
    """A launcher process that has created `home` and is ready to start its program.

    `home` is the path of a new directory, the program's working directory. It, and shared memory whose name starts with
    its name, are removed when the program ends. A program that takes longer than `stop_timeout_s` to stop is killed.

    Raises:
        EOFError: `home` cannot be created; the log contains the reason.
    """

    def __init__(self, home: Path, log: ServerLog, *, environment: Mapping[str, str], stop_timeout_s: float) -> None:
        launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py"))]
        self._process = subprocess.Popen(
            [*launcher, str(os.getpid()), str(home), f"{stop_timeout_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.fileno(),
            env=environment,
            start_new_session=True,  # Ctrl-C only reaches us, and we stop the program
        )
        log.release()
        try:
            self._read_line()
        except BaseException:
            self.stop()
            raise

    def run(self, *command: str, hidden: Sequence[str] = ()) -> int:
        """Start the program, and return its process id.

        The `hidden` arguments follow the others, and other users of this machine cannot see them in the process list if
        the system allows ptrace.

        Raises:
            EOFError: the program could not be started; the log contains the reason.
        """
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.writelines(os.fsencode(part) + b"\0" for part in (str(len(hidden)), *command, *hidden))
        return int(self._read_line())

    def mark_running(self) -> None:
        """Mark the program as running, so that it is asked to stop before being killed."""
        self._process.send_signal(signal.SIGUSR1)

    def poll(self) -> int | None:
        """Return the exit status (negative for a signal), or None until the program has exited and cleanup is done."""
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        with self._process as process:  # closes its pipes and waits for it
            process.terminate()

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise EOFError
        return line
