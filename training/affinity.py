"""Which cores a process may use: the modes of NVIDIA's DeepLearningExamples, for processes that compute on CPUs.

There a process sits beside its GPU; here the local ranks of a machine share its sockets, neighbours on neighbouring
ones. With fewer ranks than sockets a rank has several, and with one rank all.

    disabled                    any core
    socket                      all cores of the rank's first socket
    single                      the first core of the rank's first socket
    single_unique               one core, of each rank another
    socket_unique_interleaved   a share of the cores of the rank's sockets, in turns with the other ranks there
    socket_unique_continuous    a share of them, one core behind the other
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from workflows.errors import ConfigError

DISABLED = "disabled"
MODES = (DISABLED, "socket", "single", "single_unique", "socket_unique_interleaved", "socket_unique_continuous")

_SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True, order=True)
class Cpu:
    """A processor that the system knows, one of several where a core has several threads.

    Attributes:
        socket: number of its package.
        core: number of its core, within the package.
        number: what the system calls it.
    """

    socket: int
    core: int
    number: int


def allowed_cpus(system: Path = _SYSTEM) -> list[Cpu]:
    """The processors that this process may use now; without a topology each is a core of one socket.

    Args:
        system: where Linux describes them.

    Raises:
        ConfigError: the system cannot say.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigError(f"this system has no CPU affinity. Give --affinity {DISABLED}.")
    return sorted(_cpu(system, number) for number in os.sched_getaffinity(0))


def cores_of(mode: str, cpus: Sequence[Cpu], *, rank: int = 0, size: int = 1) -> set[int]:
    """The processors of a rank.

    Args:
        mode: one of `MODES`.
        cpus: those that all ranks may use together.
        rank: number of the process on this machine.
        size: how many there are.

    Raises:
        ConfigError: no such mode, or there are not enough cores for all ranks to have their own.
    """
    if mode not in MODES:
        raise ConfigError(f"affinity is {mode!r}. Available: {', '.join(MODES)}.")
    if mode == DISABLED:
        return {cpu.number for cpu in cpus}
    sockets = [list(group) for _, group in groupby(sorted(cpus), key=lambda cpu: cpu.socket)]
    first, *others = _shared_out(sockets, rank, size)
    if mode == "socket":
        return _numbers(first)
    if mode == "single":
        return _numbers(_cores(first)[0])
    neighbours = [other for other in range(size) if _shared_out(sockets, other, size)[0] is first]
    cores = _cores([cpu for socket in (first, *others) for cpu in socket])
    place, among = neighbours.index(rank), len(neighbours)
    if among > len(cores):
        raise ConfigError(
            f"affinity {mode!r} gives each process cores of its own, but {among} share a socket with {len(cores)}. "
            f"Start fewer, or give --affinity {DISABLED}."
        )
    if mode == "single_unique":
        return _numbers(cores[place])
    if mode == "socket_unique_interleaved":
        mine = cores[place::among]
    else:
        mine = cores[len(cores) * place // among : len(cores) * (place + 1) // among]
    return _numbers(cpu for core in mine for cpu in core)


def set_affinity(mode: str, *, rank: int = 0, size: int = 1) -> set[int]:
    """Bind this thread, and those that it starts from now on; call it before a framework starts its own.

    Args:
        mode, rank, size: see `cores_of`.

    Returns:
        The processors.

    Raises:
        ConfigError: see `cores_of`, or the system has no affinity.
    """
    if mode == DISABLED:
        return cores_of(mode, [])
    cores = cores_of(mode, allowed_cpus(), rank=rank, size=size)
    os.sched_setaffinity(0, cores)
    return cores


def _shared_out(sockets: Sequence[list[Cpu]], rank: int, size: int) -> Sequence[list[Cpu]]:
    """The sockets of a rank, at least one."""
    start, stop = len(sockets) * rank // size, len(sockets) * (rank + 1) // size
    return sockets[start : max(stop, start + 1)]


def _cores(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    """The processors core by core."""
    return [list(group) for _, group in groupby(sorted(cpus), key=lambda cpu: (cpu.socket, cpu.core))]


def _numbers(cpus: Iterable[Cpu]) -> set[int]:
    return {cpu.number for cpu in cpus}


def _cpu(system: Path, number: int) -> Cpu:
    topology = system / f"cpu{number}" / "topology"
    try:
        socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        socket, core = 0, number
    return Cpu(socket=socket, core=core, number=number)
