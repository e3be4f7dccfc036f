"""The processors of this machine, and a share of them for each of several processes."""

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

_SYSTEM = Path("/sys/devices/system/cpu")


class Cpu(NamedTuple):
    """A logical processor, one of several where a core has several threads."""

    socket: int
    core: int
    number: int


def allowed_cpus(system: Path = _SYSTEM) -> list[Cpu]:
    """The processors that this process may use, by socket and core; without a topology each is a core of one socket."""
    return sorted(_cpu(system, number) for number in os.sched_getaffinity(0))


def cores_of(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    return [list(group) for _, group in groupby(sorted(cpus), key=lambda cpu: (cpu.socket, cpu.core))]


def share_of(cpus: Sequence[Cpu], *, rank: int, size: int) -> set[int]:
    """The processors of process `rank` of `size`, whole neighbouring cores; none if there are fewer cores."""
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
