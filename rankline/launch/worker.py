"""One worker process: its identity, its share of the machine, and its reports.

A worker reports to Rankline's launcher with JSON text sequences (RFC 7464) on standard output, which horovodrun
forwards from every host: progress, checkpoints, an error, the model. Under plain horovodrun, worker 0 prints its
output, and the others are silent.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console

from rankline.terminal.console import CONSOLE, Display, Stages, format_error, say
from rankline.training.distributed.communicator import Communicator, join_world, num_started
from rankline.training.distributed.config import WorkersConfig
from rankline.training.run.observers import Observer
from rankline.workflows.core.errors import ConfigError, RanklineError, WorkerLostError
from rankline.workflows.core.machine import num_cores
from rankline.workflows.core.progress import Progress

if TYPE_CHECKING:
    from rankline.training.tracking import RunLog

_SYSTEM = Path("/sys/devices/system/cpu")


class Cpu(NamedTuple):
    """A logical CPU. A core with several hardware threads has several logical CPUs."""

    socket: int
    core: int
    number: int


def allowed_cpus(system: Path = _SYSTEM) -> list[Cpu]:
    """Return the CPUs that this process may use, sorted by socket and core.

    Without topology information, each CPU counts as one core of a single socket.
    """
    return sorted(_cpu(system, number) for number in os.sched_getaffinity(0))


def cores_of(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    return [list(group) for _, group in groupby(sorted(cpus), key=lambda cpu: (cpu.socket, cpu.core))]


def share_of(cpus: Sequence[Cpu], *, rank: int, size: int) -> set[int]:
    """Return the CPUs to assign to process `rank` of `size`: all logical CPUs of a range of adjacent cores.

    The set is empty if there are fewer cores than processes.
    """
    cores = cores_of(cpus)
    mine = cores[len(cores) * rank // size : len(cores) * (rank + 1) // size]
    return {cpu.number for core in mine for cpu in core} if len(cores) >= size else set()


def _cpu(system: Path, number: int) -> Cpu:
    topology = system / f"cpu{number}" / "topology"
    try:
        socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        socket, core = 0, number
    return Cpu(socket, core, number)


LAUNCHED_VARIABLE = "RANKLINE_LAUNCHED"
"""Set in the environment of workers whose launcher reads their records."""

# Set for each worker by horovodrun with Gloo (first name) or by Open MPI (second name).
_RANK = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")
_LOCAL_RANK = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
THREADS_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # Arrow reads the first
_RECORD = "\x1e"  # first character of a record


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The identity of this worker process, which may be the only worker.

    Attributes:
        local_size: number of workers on this machine; 0 if the launcher does not report it.
        is_launched: whether Rankline's launcher started this process.
    """

    rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    is_alone: bool = True
    is_launched: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Worker":
        rank = _first_of(_RANK, environment)
        if rank is None:
            return cls()
        return cls(
            rank=int(rank),
            local_rank=int(_first_of(_LOCAL_RANK, environment) or 0),
            local_size=int(_first_of(_LOCAL_SIZE, environment) or 0),
            is_alone=False,
            is_launched=LAUNCHED_VARIABLE in environment,
        )

    @contextmanager
    def at_work(self) -> Iterator[Display]:
        """Yield the worker's progress display, and report errors to the launcher or, from worker 0, on the terminal.

        SIGTERM, which ends the other workers when one fails, acts like Ctrl-C.
        """
        if not self.is_alone:
            signal.signal(signal.SIGTERM, _interrupt)
        try:
            if self.is_launched:
                yield _ReportingDisplay()
            else:
                with Stages(["train"], CONSOLE if self.rank == 0 else Console(quiet=True)) as stages:
                    yield stages
        except Exception as error:
            if self.is_launched:
                traceback.print_exc()
                report(error=format_error(error), is_lost=isinstance(error, WorkerLostError))
            elif self.rank == 0 or not isinstance(error, RanklineError):
                raise
            raise typer.Exit(1) from None

    @contextmanager
    def in_world(self, config: WorkersConfig) -> Iterator[Communicator]:
        world = join_world(config)
        with world.propagating_errors():
            if not config.is_elastic and config.workers not in (1, world.size):
                raise ConfigError(
                    f"--workers is {config.workers}, but {world.size} processes were started. Make the two equal, "
                    "or omit --workers when starting with horovodrun."
                )
            yield world

    def observers(self, log: "RunLog") -> list[Observer]:
        return [_ReportingObserver(log.run_id)] if self.is_launched else []

    def show(self, model: Mapping[str, str]) -> None:
        if self.rank > 0:
            return
        if self.is_launched:
            report(model=dict(model))
        else:
            say(f"model: {model['path']}\nMLflow run: {model['run_id']} in {model['tracking_uri']}")


def reject_multiprocess(verb: str, environment: Mapping[str, str]) -> None:
    if (number := num_started(environment)) > 1:
        raise ConfigError(
            f"rankline {verb} was started as one of {number} processes, each of which would do all the work in the "
            "same directory. Start it only once; to train on several workers, run rankline train RECIPE --workers N."
        )


def limit_threads(threads: int, num_processes: int) -> None:
    """Limit the threads of TensorFlow, Arrow and the loader. Call this before importing any of them.

    If `threads` is 0, each process gets its share of the cores, unless the environment already sets a limit.
    `num_processes` is 0 if unknown.
    """
    share = max(1, num_cores() // max(1, num_processes))
    for name in THREADS_VARIABLES:
        if threads:
            os.environ[name] = str(threads)
        elif num_processes > 1:
            os.environ.setdefault(name, str(share))


def pin_cores(worker: Worker) -> None:
    """Bind a worker to dedicated cores, if there are enough for all workers. Call this before importing a framework.

    Two workers on two cores train on 8 % more rows per second this way, because their threads do not compete.
    """
    if worker.local_size <= 1:
        return
    if cpus := share_of(allowed_cpus(), rank=worker.local_rank, size=worker.local_size):
        os.sched_setaffinity(0, cpus)


def report(**record: Any) -> None:
    sys.stdout.write(f"{_RECORD}{json.dumps(record)}\n")
    sys.stdout.flush()


def parse_record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line.partition(_RECORD)[2])
    except ValueError:  # no record, or an incomplete one from a worker that died
        return None
    return record if isinstance(record, dict) else None


class _ReportingDisplay:
    @contextmanager
    def stage(self, name: str) -> Iterator[Progress]:  # noqa: ARG002  (the launcher has only one stage)
        yield _ReportingProgress()


class _ReportingProgress(Progress):
    def update(self, done: float, total: float, note: str = "") -> None:
        report(done=done, total=total, note=note)


class _ReportingObserver(Observer):
    def __init__(self, run_id: str) -> None:
        report(run_id=run_id)

    def after_checkpoint(self, step: int) -> None:
        report(checkpoint_step=step)


def _first_of(names: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in names if name in environment), None)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM would cut the cleanup short
    raise KeyboardInterrupt
