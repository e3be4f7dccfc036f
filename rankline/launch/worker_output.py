"""Writes the output of workers and horovodrun to log files, shows progress, and extracts the result or an error."""

import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankline.launch.horovod_check import problem
from rankline.launch.worker import parse_record
from rankline.workflows.core.errors import RanklineError, WorkerLostError
from rankline.workflows.core.progress import Progress

_KEPT_LINES = 100
_LAUNCHER = -1
_SIGNALLED = 128  # a shell reports 128 + N for a program ended by signal N
_SSH_FAILED = 255
_OF_A_WORKER = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>:(.*)", re.DOTALL)  # Open MPI writes [job,rank]
_ENDED = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_OTHERS_ARE_ENDED = "Terminating remaining workers"
_BOX = re.compile(r"^-{20,}\n(.+?)\n(?:NOTE:|-{20,}$)", re.DOTALL | re.MULTILINE)  # Open MPI frames errors this way
_UNREACHABLE = re.compile(r"ssh not successful for host (\S+?):\n(.*)")


def clear_logs(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for log in (*directory.glob("worker-*.log"), directory / "launcher.log"):
        log.unlink(missing_ok=True)


class Listener:
    def __init__(
        self, logs: Path, progress: Progress, *, mpi: bool, after_checkpoint: Callable[[], None] = lambda: None
    ) -> None:
        self._directory, self._progress, self._mpi = logs, progress, mpi
        self._after_checkpoint = after_checkpoint
        self.model: Mapping[str, str] | None = None
        """Path, run_id and tracking_uri of the model, once worker 0 has published it."""
        self.run_id: str | None = None
        """MLflow run, once it is open."""
        self.num_checkpoints = 0
        """Number of checkpoints that worker 0 has written."""
        self._logs: dict[int, Any] = {}
        self._lines: dict[int, list[str]] = {_LAUNCHER: []}
        self._errors: dict[int, tuple[bool, str]] = {}
        self._statuses: dict[int, int] = {}  # workers that ended by themselves
        self._killed: list[int] = []  # workers that had to be killed after another one failed
        self._are_ended = False  # the other workers are being ended because one failed

    def take(self, line: str) -> bool:
        """Process a line of output, and return whether any worker has failed so far."""
        if match := _OF_A_WORKER.fullmatch(line):
            worker, line = int(match[1]), match[2]
            record = parse_record(line)
            self._write(worker, line) if record is None else self._take_record(worker, record)
        else:
            self._write(_LAUNCHER, line)
            self._are_ended |= _OTHERS_ARE_ENDED in line
            if match := _ENDED.match(line):
                self._end(int(match[1]), int(match[2]))
        return bool(self._errors or self._statuses)

    def note(self, text: str) -> None:
        self._write(_LAUNCHER, f"{text}\n")

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()

    def result(self, status: int | None) -> Mapping[str, str]:
        """Return the record of the trained model, or raise an error that explains why the run ended without a model."""
        if status == 0 and self.model is not None:
            return self.model
        raise self.failure(status)

    def _write(self, worker: int, line: str) -> None:
        if worker not in self._logs:
            self._logs[worker] = self._path(worker).open("a", encoding="utf-8")
        self._logs[worker].write(line)
        self._logs[worker].flush()
        kept = self._lines.setdefault(worker, [])
        kept.append(line)
        del kept[:-_KEPT_LINES]

    def _take_record(self, worker: int, record: Mapping[str, Any]) -> None:
        if "done" in record:
            self._progress.update(record["done"], record["total"], record["note"])
        if "error" in record:
            self._errors[worker] = (record["is_lost"], record["error"])
            self._write(worker, f"Error: {record['error']}\n")
        if "checkpoint_step" in record:
            self.num_checkpoints += 1
            self._after_checkpoint()
        self.run_id = record.get("run_id", self.run_id)
        self.model = record.get("model", self.model)

    def _end(self, worker: int, status: int) -> None:
        if not self._are_ended:
            self._statuses[worker] = status
        elif status == _SIGNALLED + signal.SIGKILL:
            self._killed.append(worker)

    def _path(self, worker: int) -> Path:
        return self._directory / ("launcher.log" if worker == _LAUNCHER else f"worker-{worker}.log")

    def failure(self, status: int | None) -> RanklineError:
        for worker, (is_lost, error) in sorted(self._errors.items()):
            if not is_lost:
                return RanklineError(error if worker == 0 else f"worker {worker}: {error}")
        for worker, ended in self._statuses.items():
            if name := _signal_name(ended - _SIGNALLED):
                return WorkerLostError(f"worker {worker} was killed by {name}. {self._see(worker)}")
            if worker not in self._errors:
                kind = WorkerLostError if ended == _SSH_FAILED else RanklineError
                return kind(
                    f"worker {worker} exited with status {ended}: {self._last_line(worker)}. {self._see(worker)}"
                )
        for worker in self._killed:
            if self._errors and worker not in self._errors:
                return WorkerLostError(f"worker {worker} stopped responding. {self._see(worker)}")
        for worker, (_, error) in sorted(self._errors.items()):
            return WorkerLostError(f"{error} {self._see(worker)}")
        return self._start_failure(status)

    def _start_failure(self, status: int | None) -> RanklineError:
        output, see = "".join(self._lines[_LAUNCHER]), self._see(_LAUNCHER)
        if match := _UNREACHABLE.search(output):
            host, reason = match.groups()
            return WorkerLostError(
                f"{host} cannot be reached: {reason or 'no response'}. Make sure that `ssh {host} true` works here "
                f"without a password. {see}"
            )
        if "support has not been built" in output:
            why = problem(mpi=self._mpi) or "horovodrun found neither Gloo nor MPI"
            return RanklineError(f"the workers cannot be connected. {why}. {see}")
        box = _BOX.search(output)
        last = " ".join(box[1].split()).rstrip(".") if box else self._last_line(_LAUNCHER)
        return RanklineError(f"the workers exited with status {status} without producing a model: {last}. {see}")

    def _last_line(self, worker: int) -> str:
        lines = [line.strip() for line in self._lines.get(worker, ()) if line.strip()]
        return lines[-1].rstrip(".") if lines else "no output"

    def _see(self, worker: int) -> str:
        return f"Its log: {self._path(worker)}" if worker in self._logs else f"Logs: {self._directory}"


def _signal_name(number: int) -> str | None:
    """Return the name of signal `number`, with a likely cause for SIGKILL, or None if there is no such signal."""
    if number not in list(signal.Signals):
        return None
    name = signal.Signals(number).name
    return f"{name}, probably because it ran out of memory" if name == "SIGKILL" else name
