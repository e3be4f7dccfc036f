"""Run a program that leaves nothing behind when it ends, is stopped, or loses its parent.

    python -I -S launch.py PARENT_PID HOME STOP_TIMEOUT_S

A process of its own, so that it outlives a parent that is killed. It makes the directory HOME, writes an empty line to
standard output, reads from standard input up to its end, each ended by a NUL, how many of the arguments nobody else may
see, the program and its arguments, those last; starts the program in HOME, and writes its process id. The program's
output goes to standard error.

SIGTERM stops the program. SIGUSR1 says that it is now at work, so that it is from then on asked to stop, and killed
only after STOP_TIMEOUT_S, or when its own processes have ended and all its threads sleep; before, there is nothing that
it could lose. In the end everything that the program started, shared memory that is called as HOME begins, and HOME
are gone, and the exit status is its.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PTRACE_TRACEME, _PTRACE_DETACH = 0, 17  # linux/ptrace.h
_STACK_BEGIN = 25  # in what `_stat` gives: startstack, where a new program finds its number of arguments
_HIDDEN = b"RANKLINE_HIDDEN_%d="
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
_SHARED_MEMORY = Path("/dev/shm")
_POLL_INTERVAL_S = 0.1


def main() -> None:
    """Start the program, wait for its end or for a reason to end it, and clear up."""
    parent_pid, home, stop_timeout_s = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they wait until `sigtimedwait` takes them
    Path(home).mkdir(mode=0o700)
    fcntl.flock(os.open(home, os.O_RDONLY), fcntl.LOCK_SH)  # as long as we live: then nobody else clears it up
    try:
        _report(b"\n")
        num_hidden, *command = sys.stdin.buffer.read().split(b"\0")[:-1] or [b"0"]
        status = _run(command, int(num_hidden), home, int(parent_pid), float(stop_timeout_s)) if command else 0
    finally:
        for segment in _SHARED_MEMORY.glob(f"{Path(home).name}*"):
            segment.unlink(missing_ok=True)
        shutil.rmtree(home, ignore_errors=True)
    if status < 0:  # end as it did: by a signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _report(line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, which `_watch` sees too
        os.write(sys.stdout.fileno(), line)


def _run(command: list[bytes], num_hidden: int, home: str, parent_pid: int, stop_timeout_s: float) -> int:
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what any process below us leaves when it dies becomes a child of ours
    pid = _start(command, num_hidden, home, libc)
    _report(b"%d\n" % pid)
    if _watch(pid, parent_pid):
        _ask_to_stop(pid, stop_timeout_s)
    return _end_all()[pid]


def _start(command: list[bytes], num_hidden: int, home: str, libc: ctypes.CDLL) -> int:
    """Start the program; its last arguments are hidden from other users if this system lets us.

    Everybody can read the memory that the kernel lays arguments out in, /proc/PID/cmdline, and nobody but the user the
    one of the environment behind it. So the hidden ones are put there, and before the program's first instruction the
    places of its arguments are made to lead there. A namespace would hide nothing from outside of it, and to overwrite
    them later leaves seconds in which they can be read.
    """
    reading, writing = os.pipe()  # the other end is closed when the program has begun
    pid = os.fork()  # safe: this process has one thread
    if pid:
        os.close(writing)
        is_held = bool(os.read(reading, 1))
        os.close(reading)
        if is_held:
            state = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            if state is not None and state.si_code == os.CLD_TRAPPED:
                _lead_to_environment(pid, num_hidden)
            libc.ptrace(_PTRACE_DETACH, pid, 0, 0)
        return pid
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(home)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        environment = dict(os.environb)
        if num_hidden and libc.ptrace(_PTRACE_TRACEME, 0, 0, 0) == 0:  # holds this process where the program begins
            os.write(writing, b"h")
            for number, argument in enumerate(command[-num_hidden:]):
                environment[_HIDDEN[:-1] % number] = argument
            command[-num_hidden:] = [b"-"] * num_hidden
        os.execve(command[0], command, environment)
    except OSError as error:
        print(f"{os.fsdecode(command[0])} cannot be run: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _lead_to_environment(pid: int, num_hidden: int) -> None:
    """Point the last arguments of a program that has not begun to values in its environment."""
    word = struct.Struct("=L" if struct.calcsize("P") == 4 else "=Q")
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:

        def read(at: int, size: int = word.size) -> bytes:
            memory.seek(at)
            return memory.read(size)

        # The number of arguments, where each is, a zero, and where each variable is.
        arguments = int(_stat(Path(f"/proc/{pid}"))[_STACK_BEGIN]) + word.size
        (count,) = word.unpack(read(arguments - word.size))
        names = {_HIDDEN % number: number for number in range(num_hidden)}
        longest = max(map(len, names))
        variables = arguments + (count + 1) * word.size
        while (place := word.unpack(read(variables))[0]) != 0:
            variables += word.size
            name = read(place, longest).partition(b"=")[0] + b"="
            if name in names:
                memory.seek(arguments + (count - num_hidden + names[name]) * word.size)
                memory.write(word.pack(place + len(name)))


def _watch(pid: int, parent_pid: int) -> bool:
    """Wait until the program has ended, SIGTERM arrives or the parent is gone; returns whether it can be asked to stop.

    The parent is looked for because its death signal would come with the end of the thread that started us.
    """
    at_work = False
    while os.getppid() == parent_pid:
        received = signal.sigtimedwait(_SIGNALS, _POLL_INTERVAL_S)
        if _has_ended(pid):
            return False
        if received is not None and received.si_signo == signal.SIGTERM:
            break
        at_work |= received is not None and received.si_signo == signal.SIGUSR1
    return at_work


def _ask_to_stop(pid: int, timeout_s: float) -> None:
    """Return when the program has ended, has nothing left to do or has had its time.

    tritonserver answers its requests, ends the models and their processes, and then sleeps: it looks for its models but
    once a second, waits as long for a thread that collects metrics, and to the end for a model whose process has died.
    """
    workers = {worker for worker in _children(pid) if not _has_died(worker)}
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while not _has_ended(pid) and time.monotonic() < deadline:
        signal.sigtimedwait((signal.SIGCHLD,), _POLL_INTERVAL_S)
        if workers and workers.isdisjoint(_children(pid)) and _sleeps(pid):
            return


def _has_died(pid: int) -> bool:
    try:
        return _stat(Path(f"/proc/{pid}"))[0] == "Z"
    except OSError:
        return True


def _sleeps(pid: int) -> bool:
    """Whether no thread of the program runs or could run, so it has handled the end of its processes."""
    try:
        return all(_stat(thread)[0] == "S" for thread in Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # a thread has ended since it was listed
        return False


def _end_all() -> dict[int, int]:
    """Kill all descendants until none is left; returns the exit status of each."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            pid, status = os.wait()
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _children(parent_pid: int) -> Iterator[int]:
    """Children of a process, including zombies."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended since it was listed
            if int(_stat(process)[1]) == parent_pid:
                yield int(process.name)


def _stat(process: Path) -> list[str]:
    """The fields of `proc(5)` stat after the name: state, parent, and so on."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _has_ended(pid: int) -> bool:
    """Check without reaping, so that the id stays ours."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    main()
