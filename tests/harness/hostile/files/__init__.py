"""Artifacts made to do harm: they write files, or take more memory or time than their size justifies.

Each module here is a family with its `FAMILY`. `python -m tests.harness.hostile.files [FAMILY...]` opens every case in
a child process and reports the ones that did harm.
"""

import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from rankline.workflows.core.errors import RanklineError

EFFECT = "effect"
"""File that the payload of a case creates in the directory that `Case.write` is given."""
MAX_BYTES, MAX_S = 1 << 30, 10
_REFUSED, _TAKEN, _CRASHED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile artifact: `write` makes it in a directory and returns the path to open.

    If not `is_refused`, opening it may also succeed, without effect.
    """

    name: str
    write: Callable[[Path], Path]
    is_refused: bool = True


@dataclass(frozen=True, kw_only=True)
class Family:
    """Cases that are opened in the same way; `warm_up` imports what that needs, before the children are forked."""

    open: Callable[[Path], Any]
    cases: Callable[[], Iterable[Case]]
    warm_up: Callable[[], Any] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What opening a case did: "" or the harm, peak memory beyond that of the fork, and CPU time."""

    harm: str
    num_bytes: int
    duration_s: float


def families() -> list[str]:
    """Names of the modules of this package."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def family(name: str) -> Family:
    """The family of a module of this package."""
    found: Family = import_module(f"{__name__}.{name}").FAMILY
    return found


def try_case(family: Family, case: Case) -> Outcome:
    """Open a case in a forked child, after `family.warm_up()`."""
    directory = Path(tempfile.mkdtemp(prefix="rankline-hostile-"))
    try:
        path = case.write(directory)
        before = psutil.Process().memory_info().rss
        child = os.fork()
        if not child:
            _open(family, case, path, directory / "log")
        _, status, usage = os.wait4(child, 0)
        duration_s = usage.ru_utime + usage.ru_stime  # unlike elapsed time, the same on a busy machine
        num_bytes = max(0, (usage.ru_maxrss << 10) - before)
        return Outcome(harm=_harm(status, num_bytes, duration_s, directory), num_bytes=num_bytes, duration_s=duration_s)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _open(family: Family, case: Case, path: Path, log: Path) -> None:
    """In the child: never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the child, whatever C code it is in
    signal.alarm(10 * MAX_S)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = _CRASHED
    try:
        family.open(path)
        status = _TAKEN if case.is_refused else _REFUSED
    except RanklineError as error:
        status = _REFUSED
        if not str(error) or "\n" in str(error):
            status = _CRASHED
            log.write_text(f"not one line: {error}")
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _harm(status: int, num_bytes: int, duration_s: float, directory: Path) -> str:
    log = directory / "log"
    if (directory / EFFECT).exists():
        return "its payload ran"
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    if os.WEXITSTATUS(status) == _TAKEN:
        return "was not refused"
    if os.WEXITSTATUS(status) == _CRASHED:
        return log.read_text() if log.exists() else "crashed"
    if num_bytes > MAX_BYTES:
        return f"took {num_bytes >> 20} MiB"
    if duration_s > MAX_S:
        return f"took {duration_s:.0f} s"
    return ""
