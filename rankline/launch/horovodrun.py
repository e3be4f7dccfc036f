"""Runs the workers of one launch through horovodrun or mpirun, and reads their output until the last worker ends.

horovodrun starts this command line once per worker, locally and over ssh. `rankline.serving.server.managed_process`
ends horovodrun and all its children when this process ends, even if it is killed.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

from rankline.launch.config import LaunchConfig, is_local
from rankline.launch.horovod_check import problem
from rankline.launch.worker import LAUNCHED_VARIABLE
from rankline.launch.worker_output import Listener
from rankline.serving.server.logs import ServerLog
from rankline.serving.server.managed_process import Launched, new_home
from rankline.workflows.core.errors import RanklineError

HOROVODRUN = (sys.executable, str(Path(__file__).with_name("horovodrun_patches.py")))
"""Command that takes horovodrun's arguments."""

_END_TIMEOUT_S = 30.0  # between the first failure and the end of all workers
_STOP_TIMEOUT_S = 15.0  # horovodrun waits 5 s for its workers, and 5 s for ssh
# horovodrun sends SIGTERM to the children of its shell. Depending on the system's shell, such a child is this program
# or another shell that started it. This wrapper forwards the signal, and can be killed in place of the program.
_SHELL = (
    "/bin/sh",
    "-c",
    '"$@" & trap "kill $!" TERM; wait $!; status=$?; '
    "while kill -0 $! 2>/dev/null; do wait $!; status=$?; done; exit $status",
    "worker",
)


class WorkerGroup:
    """A group of worker processes, all of which have exited when the `with` block ends."""

    def __init__(
        self,
        command: Sequence[str],
        hosts: Mapping[str, int],
        options: LaunchConfig,
        *,
        start_timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [*_horovodrun(hosts, options, start_timeout_s), *command]
        self._environment = {**os.environ, LAUNCHED_VARIABLE: "1", "PYTHONUNBUFFERED": "1", **(environment or {})}

    def __enter__(self) -> "WorkerGroup":
        with ExitStack() as at_end:
            self._output = _Output()
            at_end.callback(self._output.close)
            try:
                self._launched = self._start()
            except EOFError:
                raise RanklineError(f"the workers could not be started: {self._output.text().strip()}") from None
            at_end.callback(self._launched.stop)
            self._launched.mark_running()
            self._at_end = at_end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._at_end.close()

    def terminate(self) -> None:
        self._launched.terminate()

    def listen(self, listener: Listener) -> int:
        """Forward the workers' output to `listener` until the last worker exits, and return horovodrun's exit status.

        Ctrl-C ends the workers immediately; a failed worker ends the others after a grace period.
        """
        end = Timer(_END_TIMEOUT_S, self.terminate)
        try:
            for line in self._output.lines():
                if listener.take(line) and end.ident is None:
                    end.start()
        except BaseException:
            self.terminate()
            for line in self._output.lines():  # last output of workers being stopped
                listener.take(line)
            raise
        finally:
            end.cancel()
        return self._launched.wait()

    def _start(self) -> Launched:
        home = new_home("workers")
        launched = Launched(
            home,
            self._output,
            environment=self._environment,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        try:
            launched.run(shutil.which("env") or "env", "-C", str(Path.cwd()), *self._command)
        except BaseException:
            launched.stop()
            raise
        return launched


def _horovodrun(hosts: Mapping[str, int], options: LaunchConfig, start_timeout_s: float) -> list[str]:
    number = sum(hosts.values())
    if importlib.util.find_spec("horovod") is None:
        raise RanklineError(f"cannot start {number} workers. {problem(mpi=options.mpi)}.")
    # If all workers run on this machine, they use loopback, and horovodrun accepts no other interface.
    goes_out = options.network_interface and not all(is_local(host) for host in hosts)
    return [
        *HOROVODRUN,
        *("-np", str(number), "-H", ",".join(f"{host}:{size}" for host, size in hosts.items())),
        *(("--network-interface", options.network_interface) if goes_out else ()),
        "--mpi" if options.mpi else "--gloo",
        "--disable-cache",  # of reachable hosts, kept for an hour in the home directory
        *("--start-timeout", f"{start_timeout_s:.0f}"),
        *_SHELL,
    ]


class _Output(ServerLog):
    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._reading = os.fdopen(reading, encoding="utf-8", errors="replace")

    def fileno(self) -> int:
        return self._writing

    def release(self) -> None:
        os.close(self._writing)

    def text(self) -> str:
        return self._reading.read()

    def close(self) -> None:
        self._reading.close()

    def lines(self) -> Iterator[str]:
        yield from self._reading
