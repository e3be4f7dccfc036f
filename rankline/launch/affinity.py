"""CPU topology of this machine, and the division of its cores among processes."""

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

_SYSTEM = Path("/sys/devices/system/cpu")


class Cpu(NamedTuple):
    """A logical CPU; a core with several threads has several of them."""

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
    """Return the CPUs of process `rank` of `size`: whole adjacent cores.

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
