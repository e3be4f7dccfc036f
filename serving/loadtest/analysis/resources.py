"""CPU time and memory of the server's processes during a measurement."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, kw_only=True)
class ServerResources:
    """CPU time and memory used by the server.

    Attributes:
        cpu_cores: CPU time per second; 1 is one fully used core.
        memory_bytes: maximum resident memory of all processes together, with shared pages counted in each process.
        num_processes: number of processes, the server and its model instances.
    """

    cpu_cores: float
    memory_bytes: int
    num_processes: int


class ResourceMeter:
    """Measures processes from `begin` to `end`. `process_ids` returns no ids for a server on another machine."""

    def __init__(self, process_ids: Callable[[], Sequence[int]]) -> None:
        self._process_ids = process_ids
        self._begin_s = self._elapsed_s = 0.0
        self._cpu_before: dict[int, float] = {}
        self._cpu_after: dict[int, float] = {}
        self._memory_bytes = 0

    def begin(self) -> None:
        self._begin_s, self._memory_bytes = time.perf_counter(), 0
        self._cpu_before = self.sample()

    def sample(self) -> dict[int, float]:
        """Update the maximum memory, and return CPU seconds by process."""
        cpu_s, memory_bytes = {}, 0
        for pid in self._process_ids():
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            cpu_s[pid] = times.user + times.system
        self._memory_bytes = max(self._memory_bytes, memory_bytes)
        return cpu_s

    def end(self) -> None:
        self._cpu_after = self.sample()
        self._elapsed_s = time.perf_counter() - self._begin_s

    def result(self) -> ServerResources | None:
        if not self._cpu_after or not self._elapsed_s:
            return None
        used_s = sum(cpu_s - self._cpu_before.get(pid, 0.0) for pid, cpu_s in self._cpu_after.items())
        return ServerResources(
            cpu_cores=used_s / self._elapsed_s,
            memory_bytes=self._memory_bytes,
            num_processes=len(self._cpu_after),
        )
