"""Runs `rankline` commands in children of one process that has imported TensorFlow and NVTabular already.

A command takes ten seconds of processor time to import them, and the tests run a hundred commands. Each runs in a
process of its own, with its own directory, files and exit code. The commands that documents show are run by a shell.
"""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO

from rankline.terminal.silence import quiet_libraries
from tests.harness.process.disk import make_stores_quickly, sync_nothing

ROOT = Path(__file__).parents[3]
RANKLINE = Path(sys.executable).with_name("rankline")
_SEPARATOR = "\0"
_MAX_REQUEST_BYTES = 1 << 20
_MODULES = (
    "mlflow.store.tracking.sqlalchemy_store",
    "rankline.scoring.recommend",
    "rankline.runs.bench_reports",
    "rankline.serving.loadtest.runner",
    "rankline.serving.export.exporter",
    "rankline.training.run.train",
    "rankline.training.trainers.keras",
    "rankline.workflows.preprocess.prepare",
)
"""What verbs import. Not ONNX Runtime: it starts a thread, which a fork lacks and waits for at its end."""


class CliServer:
    """Starts the process at the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *arguments: str, cwd: Path, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run `rankline` to its end."""
        with self._lock, ExitStack() as at_end:
            files = [at_end.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write((stdin or "").encode())
            files[0].seek(0)
            if self._process is None:
                self._start()
            try:
                request = _SEPARATOR.join([str(cwd), *map(str, arguments)]).encode()
                socket.send_fds(self._connection, [request], [file.fileno() for file in files])
                answer = self._connection.recv(16)
            except BaseException:  # the test's time is over
                self.stop()
                raise
            assert answer, "the process that runs commands has ended"
            output, errors = (_text_of(file) for file in files[1:])
        return subprocess.CompletedProcess([RANKLINE, *arguments], int(answer), output, errors)

    def stop(self) -> None:
        """End the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._process = None

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.commands.cli_server", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
            )


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _become_a_command(connection: socket.socket) -> None:
    """Wait for commands, and return in the child that is to run one."""
    while True:
        request, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
        if not request:  # the tests are over
            sys.exit()
        child = os.fork()
        if child == 0:
            connection.close()
            directory, *arguments = request.decode().split(_SEPARATOR)
            os.chdir(directory)
            sys.argv = [str(RANKLINE), *arguments]
            sys.orig_argv = [sys.executable, *sys.argv]  # which its workers are started with
            for target, file in enumerate(files):
                os.dup2(file, target)
                os.close(file)
            return
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_libraries() -> None:
    """All that a verb may need, as `rankline` does: with its environment, and without a word.

    They start no threads that do work: TensorFlow makes its own at the first operation, which is in the child.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    quiet_libraries()
    for module in _MODULES:
        import_module(module)
    sync_nothing()
    make_stores_quickly()


if __name__ == "__main__":
    from rankline.cli.main import main

    gc.disable()
    _import_libraries()
    gc.freeze()  # what is imported stays: no collection of garbage has to look through it
    gc.set_threshold(50_000)  # as in `tests/conftest.py`
    gc.enable()
    _become_a_command(socket.socket(fileno=int(sys.argv[1])))
    main()
