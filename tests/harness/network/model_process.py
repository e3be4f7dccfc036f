"""Kills a process of a Python model, and not its server with it."""

import os
import signal
import time

import numpy as np
import psutil

_NUM_WORDS = 1 << 16  # of the shared memory: a process and its server make their locks at its beginning
_TID_MASK = 0x3FFF_FFFF  # linux/futex.h: what else is in a lock's first word are flags
_KIND = 4  # words from the first of a `pthread_mutex_t` (lock, count, owner, users, kind, …) to its kind
_ROBUST_AND_SHARED = 16 | 128  # PTHREAD_MUTEX_ROBUST_NORMAL_NP, and between processes: what all of Triton's locks are


def kill_model_process(pid: int) -> None:
    """Kill it at a moment when none of its threads holds a lock in the memory that it shares with its server.

    Triton 24.10 ends with one that does (triton-inference-server/server#8882), or lets its requests wait for ever: its
    Python backend throws where it finds the owner of a lock dead, also where nothing may throw. Of processes that are
    killed under load, at any moment, that is one in some hundred.
    """
    process = psutil.Process(pid)
    while True:
        os.kill(pid, signal.SIGSTOP)
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        if not _holds_a_lock(process):
            break
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)


def _holds_a_lock(process: psutil.Process) -> bool:
    """Whether one of its threads has a lock of the shared memory, where an offset may be a thread's number, too."""
    threads = [thread.id for thread in process.threads()]
    regions = {mapped.path for mapped in process.memory_maps() if mapped.path.startswith("/dev/shm/")}
    for region in regions:
        words = np.fromfile(region, np.uint32, _NUM_WORDS)
        owners = words[:-_KIND][words[_KIND:] == _ROBUST_AND_SHARED] & _TID_MASK
        if np.isin(owners, threads).any():
            return True
    return False
