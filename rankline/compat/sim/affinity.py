"""The document's CPU affinity modes, which NVIDIA's DeepLearningExamples share.

In the original, each process runs next to its GPU. Here a single process uses the whole machine, so the modes that
divide the cores of a socket among processes give it all of them:

    disabled, socket_unique_interleaved, socket_unique_continuous   all CPUs
    socket                                                          CPUs of the first socket
    single, single_unique                                           CPUs of the first core
"""

import os
from collections.abc import Sequence

from rankline.launch.affinity import Cpu, allowed_cpus, cores_of
from rankline.workflows.core.errors import ConfigError

_SOCKET, _CORE = ("socket",), ("single", "single_unique")
MODES = ("disabled", *_SOCKET, *_CORE, "socket_unique_interleaved", "socket_unique_continuous")


def cpus_of(mode: str, cpus: Sequence[Cpu]) -> set[int]:
    """Return the numbers of the CPUs that a mode allows."""
    if mode not in MODES:
        raise ConfigError(f"--affinity is {mode!r}. Available: {', '.join(MODES)}.")
    first = min(cpus)
    if mode in _SOCKET:
        return {cpu.number for cpu in cpus if cpu.socket == first.socket}
    if mode in _CORE:
        return {cpu.number for cpu in cores_of(cpus)[0]}
    return {cpu.number for cpu in cpus}


def set_affinity(mode: str) -> None:
    """Bind this thread and all threads that it starts later. Call this before a framework starts its own threads."""
    os.sched_setaffinity(0, cpus_of(mode, allowed_cpus()))
