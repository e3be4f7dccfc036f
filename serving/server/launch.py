"""Run a program, and clean up after it when it exits, is stopped, or loses its parent.

    python -I -S launch.py PARENT_PID HOME STOP_TIMEOUT_S

The launcher is a separate process, so that it outlives a parent that is killed. It creates the directory HOME and
writes an empty line to standard output. From standard input it reads NUL-terminated strings until the end: the number
of arguments to hide from other users, the program, and the arguments, the hidden ones last. It starts the program in
HOME, and writes its process id. The program's output goes to standard error.

SIGTERM stops the program. SIGUSR1 marks the program as running: from then on it is asked to stop, and killed only after
STOP_TIMEOUT_S, or when its child processes have exited and all its threads sleep. Before SIGUSR1 it has nothing to
lose, and is killed immediately. In the end all descendants of the program, shared memory whose name starts with the
name of HOME, and HOME itself are gone, and the launcher exits with the program's status.
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
_STACK_BEGIN = 25  # index in the result of `_stat`: startstack, the address of a new program's argument count
_HIDDEN = b"RANKLINE_HIDDEN_%d="
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
_SHARED_MEMORY = Path("/dev/shm")
_POLL_INTERVAL_S = 0.1


def main() -> None:
    parent_pid, home, stop_timeout_s = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # pending until `sigtimedwait` accepts them
    Path(home).mkdir(mode=0o700)
    fcntl.flock(os.open(home, os.O_RDONLY), fcntl.LOCK_SH)  # held while we live, so that no other process removes it
    try:
        _report(b"\n")
        num_hidden, *command = sys.stdin.buffer.read().split(b"\0")[:-1] or [b"0"]
        status = _run(command, int(num_hidden), home, int(parent_pid), float(stop_timeout_s)) if command else 0
    finally:
        for segment in _SHARED_MEMORY.glob(f"{Path(home).name}*"):
            segment.unlink(missing_ok=True)
        shutil.rmtree(home, ignore_errors=True)
    if status < 0:  # end by the same signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # the action of SIGKILL cannot be set
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _report(line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, as `_watch` will notice
        os.write(sys.stdout.fileno(), line)


def _run(command: list[bytes], num_hidden: int, home: str, parent_pid: int, stop_timeout_s: float) -> int:
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become our children
    pid = _start(command, num_hidden, home, libc)
    _report(b"%d\n" % pid)
    if _watch(pid, parent_pid):
        _ask_to_stop(pid, stop_timeout_s)
    return _end_all()[pid]


def _start(command: list[bytes], num_hidden: int, home: str, libc: ctypes.CDLL) -> int:
    """Start the program, hiding its last arguments from other users if the system allows it.

    All users can read /proc/PID/cmdline, the memory in which the kernel lays out the arguments, but only the owner can
    read the environment behind it. The hidden arguments are therefore put into the environment, and before the
    program's first instruction its argument pointers are redirected to them. A namespace hides nothing from processes
    outside it, and overwriting the arguments later would leave them readable for seconds.
    """
    reading, writing = os.pipe()  # closed when the program starts
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
        if num_hidden and libc.ptrace(_PTRACE_TRACEME, 0, 0, 0) == 0:  # stops this process at the program's start
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
    """Redirect a program's last argument pointers to values in its environment, before its first instruction runs."""
    word = struct.Struct("=L" if struct.calcsize("P") == 4 else "=Q")
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:

        def read(at: int, size: int = word.size) -> bytes:
            memory.seek(at)
            return memory.read(size)

        # Layout: number of arguments, argument pointers, zero, pointers to environment variables.
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
    """Wait until the program exits, SIGTERM arrives or the parent is gone. Return whether to ask the program to stop
    before killing it.

    The parent is polled because a parent-death signal would arrive when the thread that started us ends.
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
    """Ask the program to stop, and wait until it exits or the timeout expires. Return early once it is sleeping after
    its child processes have exited.

    tritonserver answers its requests, ends the models and their processes, and then sleeps: it checks its models only
    once a second, waits as long for its metrics thread, and indefinitely for a model whose process has died.
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
    """Whether all threads of the program sleep, which implies that it has handled the exit of its child processes."""
    try:
        return all(_stat(thread)[0] == "S" for thread in Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # a thread has exited since it was listed
        return False


def _end_all() -> dict[int, int]:
    """Kill all descendants until none is left, and return the exit status of each."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in _children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            pid, status = os.wait()
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _children(parent_pid: int) -> Iterator[int]:
    """Yield the children of a process, including zombies."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended since it was listed
            if int(_stat(process)[1]) == parent_pid:
                yield int(process.name)


def _stat(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the process name, starting with the state and the parent's PID."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _has_ended(pid: int) -> bool:
    """Whether a child has exited, checked without reaping it, so that its id is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    main()
