"""Several workers: `rankline train RECIPE --workers N` starts them, shows them as one run, and ends them together.

horovodrun starts our own command line once for each worker, here and over ssh. What workers tell (`rankline.worker`)
comes through its output; the rest of that goes to a log for each worker. What horovodrun starts ends with it, and it
ends with us, even if we are killed: `serving.launched` sees to that.
"""

import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

from rankline.elastic import SIGNALLED
from rankline.elastic_hosts import LOCAL
from rankline.horovod_check import problem
from rankline.launch_config import LaunchConfig
from rankline.worker import LAUNCHED_VARIABLE, told
from serving.launched import Launched
from serving.server_log import ServerLog
from training.config import WorkersConfig
from workflows.errors import ConfigError, RanklineError, WorkerLostError
from workflows.progress import Progress

_END_TIMEOUT_S = 30.0  # from the first failure to the end of all workers
_STOP_TIMEOUT_S = 15.0  # horovodrun gives its workers 5 s, and ssh as long again
_KEPT_LINES = 100
_LAUNCHER = -1
_OF_A_WORKER = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>:(.*)", re.DOTALL)  # Open MPI writes [job,rank]
_ENDED = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_ERROR = "error: "
_OTHERS_ARE_ENDED = "Terminating remaining workers"
_UNREACHABLE = re.compile(r"ssh not successful for host (\S+?):\n(.*)")
# horovodrun asks the children of its own shell to stop; whether that is our program or has started it depends on the
# system's shell. This one passes it on if it is asked, and is there to be killed if it is not.
_SHELL = (
    "/bin/sh",
    "-c",
    '"$@" & trap "kill $!" TERM; wait $!; status=$?; '
    "while kill -0 $! 2>/dev/null; do wait $!; status=$?; done; exit $status",
    "worker",
)


def launch(
    command: Sequence[str], config: WorkersConfig, options: LaunchConfig, logs: Path, progress: Progress
) -> Mapping[str, str]:
    """Run a command as several workers until they end.

    Args:
        command: of each worker, which finds out from its environment that it is one.
        config: how many, and how long one waits for another.
        options: where.
        logs: directory for worker-N.log, and launcher.log of what starts them; earlier ones are removed.
        progress: is passed what worker 0 reports.

    Returns:
        What worker 0 made: path, run_id and tracking_uri.

    Raises:
        ConfigError: the hosts do not take so many workers.
        RanklineError: Horovod is missing, the workers could not be started, or one failed; one message, which names the
            worker and its log.
    """
    driver = _elastic_driver(config, options) if config.is_elastic else _horovodrun(config, options)
    number = options.num_workers(config)
    progress.update(0, 1, f"starting {number} worker{'s' if number > 1 else ''}")
    with ExitStack() as at_end:
        listener, output = at_end.enter_context(Listener(logs, progress, mpi=options.mpi)), _Output()
        at_end.callback(output.close)
        try:
            launched = _start((*driver, *command), output)
            at_end.callback(launched.stop)
            launched.set_at_work()
            _listen(listener, output, launched, ends_at_failure=not config.is_elastic)
        except EOFError:
            raise RanklineError(f"the workers could not be started: {output.text().strip()}") from None
    return listener.result(launched.poll())


def _start(command: Sequence[str], output: "_Output") -> Launched:
    name = f"rankline-workers-{os.getpid()}-{secrets.token_hex(4)}"
    launched = Launched(
        Path(tempfile.gettempdir(), name),
        output,
        environment={**os.environ, LAUNCHED_VARIABLE: "1", "PYTHONUNBUFFERED": "1"},
        stop_timeout_s=_STOP_TIMEOUT_S,
        shm_prefix=f"{name}-",
    )
    try:
        launched.run(shutil.which("env") or "env", "-C", str(Path.cwd()), *command)
    except BaseException:
        launched.stop()
        raise
    return launched


def _listen(listener: "Listener", output: "_Output", launched: Launched, *, ends_at_failure: bool) -> None:
    """Listen until the last process has ended; Ctrl-C ends them, and a failure does after a while."""
    end = Timer(_END_TIMEOUT_S, launched.terminate)
    try:
        for line in output.lines():
            if listener.take(line) and ends_at_failure and end.ident is None:
                end.start()
    except BaseException:
        launched.terminate()
        for line in output.lines():  # the last words of those that are stopped
            listener.take(line)
        raise
    finally:
        end.cancel()


def _horovodrun(config: WorkersConfig, options: LaunchConfig) -> list[str]:
    number, script = options.num_workers(config), Path(sys.executable).with_name("horovodrun")
    if not script.is_file():
        raise RanklineError(f"{number} workers cannot be connected. {problem(mpi=options.mpi)}.")
    places = options.places or {LOCAL: number}
    return [
        *(sys.executable, str(script)),
        *("-np", str(number), "-H", ",".join(f"{host}:{size}" for host, size in places.items())),
        *(("--network-interface", options.network_interface) if options.network_interface else ()),
        "--mpi" if options.mpi else "--gloo",
        "--disable-cache",  # of an hour, in the home directory, of what hosts could be reached
        *("--start-timeout", f"{config.timeout_s:.0f}"),
        *_SHELL,
    ]


def _elastic_driver(config: WorkersConfig, options: LaunchConfig) -> list[str]:
    if options.mpi:
        raise ConfigError("--mpi cannot go on without a worker that dies. Leave it out, or --max-workers.")
    return [
        *(sys.executable, "-m", "rankline.elastic", "-np", str(options.num_workers(config))),
        *("--min", str(config.min_workers), "--max", str(config.max_workers)),
        *(("-H", options.hosts) if options.hosts else ()),
        *(("--host-discovery-script", options.host_discovery_script) if options.host_discovery_script else ()),
        *(("--network-interface", options.network_interface) if options.network_interface else ()),
        *("--timeout", f"{config.timeout_s:g}", "--"),
    ]


class _Output(ServerLog):
    """What comes from everybody, line by line, until the last one has ended."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._reading = os.fdopen(reading, encoding="utf-8", errors="replace")

    def fileno(self) -> int:
        """See `ServerLog`."""
        return self._writing

    def release(self) -> None:
        """See `ServerLog`."""
        os.close(self._writing)

    def text(self) -> str:
        """See `ServerLog`."""
        return self._reading.read()

    def close(self) -> None:
        """See `ServerLog`."""
        self._reading.close()

    def lines(self) -> Iterator[str]:
        """Each line as it comes."""
        yield from self._reading


class Listener:
    """Takes what comes from workers and from what starts them, and knows in the end how it went.

    Args:
        logs: directory for what they say; earlier logs are removed.
        progress: is passed what worker 0 reports.
        mpi: whether MPI starts the workers.
    """

    def __init__(self, logs: Path, progress: Progress, *, mpi: bool) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        for log in (*logs.glob("worker-*.log"), logs / "launcher.log"):
            log.unlink(missing_ok=True)
        self._directory, self._progress, self._mpi = logs, progress, mpi
        self._logs: dict[int, Any] = {}
        self._lines: dict[int, list[str]] = {_LAUNCHER: []}
        self._errors: dict[int, tuple[bool, str]] = {}
        self._statuses: dict[int, int] = {}  # of those that ended by themselves
        self._killed: list[int] = []  # those that then did not end when they were asked to
        self._are_ended = False  # the others, as one has failed
        self._model: Mapping[str, str] | None = None

    def take(self, line: str) -> bool:
        """Take a line of the output.

        Returns:
            Whether somebody has failed so far.
        """
        if match := _OF_A_WORKER.fullmatch(line):
            worker, line = int(match[1]), match[2]
            facts = told(line)
            self._write(worker, line) if facts is None else self._hear(worker, facts)
        else:
            self._write(_LAUNCHER, line)
            self._are_ended |= _OTHERS_ARE_ENDED in line
            if match := _ENDED.match(line):
                self._end(int(match[1]), int(match[2]))
        return bool(self._errors or self._statuses)

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()

    def result(self, status: int | None) -> Mapping[str, str]:
        """What was made.

        Args:
            status: exit status of what started the workers.

        Raises:
            RanklineError: why nothing was.
        """
        if status == 0 and self._model is not None:
            return self._model
        raise self._failure(status)

    def _write(self, worker: int, line: str) -> None:
        if worker not in self._logs:
            self._logs[worker] = self._path(worker).open("a", encoding="utf-8")
        self._logs[worker].write(line)
        self._logs[worker].flush()
        kept = self._lines.setdefault(worker, [])
        kept.append(line)
        del kept[:-_KEPT_LINES]

    def _hear(self, worker: int, facts: Mapping[str, Any]) -> None:
        if "done" in facts:
            self._progress.update(facts["done"], facts["total"], facts["note"])
        if "error" in facts:
            self._errors[worker] = (facts["is_lost"], facts["error"])
            self._write(worker, f"Error: {facts['error']}\n")
        if "model" in facts:
            self._model = facts["model"]

    def _end(self, worker: int, status: int) -> None:
        if not self._are_ended:
            self._statuses[worker] = status
        elif status == SIGNALLED + signal.SIGKILL:
            self._killed.append(worker)

    def _path(self, worker: int) -> Path:
        return self._directory / ("launcher.log" if worker == _LAUNCHER else f"worker-{worker}.log")

    def _failure(self, status: int | None) -> RanklineError:
        """The first cause that is known: what a worker says, else how it ended, else what started them."""
        for worker, (is_lost, error) in sorted(self._errors.items()):
            if not is_lost:
                return RanklineError(error if worker == 0 else f"worker {worker}: {error}")
        for worker, ended in self._statuses.items():
            if name := _signal_name(ended - SIGNALLED):
                return WorkerLostError(f"worker {worker} was ended by {name}. {self._see(worker)}")
            if worker not in self._errors:
                last = self._last_line(worker)
                return WorkerLostError(f"worker {worker} ended with status {ended}: {last}. {self._see(worker)}")
        for worker in self._killed:
            if self._errors and worker not in self._errors:
                return WorkerLostError(f"worker {worker} did not answer. {self._see(worker)}")
        for worker, (_, error) in sorted(self._errors.items()):
            return WorkerLostError(f"{error} {self._see(worker)}")
        return self._start_failure(status)

    def _start_failure(self, status: int | None) -> RanklineError:
        said, see = "".join(self._lines[_LAUNCHER]), self._see(_LAUNCHER)
        if match := _UNREACHABLE.search(said):
            host, reason = match.groups()
            return RanklineError(
                f"{host} cannot be reached: {reason or 'no answer'}. `ssh {host} true` must work here without a "
                f"password. {see}"
            )
        if "support has not been built" in said:
            why = problem(mpi=self._mpi) or "horovodrun finds no way to connect workers"
            return RanklineError(f"the workers cannot be connected. {why}. {see}")
        last = self._last_line(_LAUNCHER)
        if last.startswith(_ERROR):  # of `rankline.elastic`
            return RanklineError(f"{last.removeprefix(_ERROR)}. {see}")
        return RanklineError(f"the workers ended with status {status} and without a model: {last}. {see}")

    def _last_line(self, worker: int) -> str:
        lines = [line.strip() for line in self._lines.get(worker, ()) if line.strip()]
        return lines[-1].rstrip(".") if lines else "it said nothing"

    def _see(self, worker: int) -> str:
        return f"Its log: {self._path(worker)}" if worker in self._logs else f"Logs: {self._directory}"


def _signal_name(number: int) -> str | None:
    """None if it is no signal: ssh, too, has a status above 128."""
    if number not in list(signal.Signals):
        return None
    name = signal.Signals(number).name
    return f"{name}, as the system does when memory runs out" if name == "SIGKILL" else name
