"""Runs the servers of this folder, each in an environment with pinned versions of its own."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankline.serving.server.ports import free_port
from rankline.workflows.core.errors import ConfigError, ServerError

_PROJECT = Path(__file__).parents[2]
_POLL_INTERVAL_S = 0.2
_READY_TIMEOUT_S = 180.0
_INSTALL_TIMEOUT_S = 900.0
_PRCTL = ctypes.CDLL(None).prctl
_PR_SET_PDEATHSIG = 1
_COMMON = ("numpy==2.4.6", "onnxruntime==1.32.0", "orjson==3.13.0")


def python_with(*packages: str) -> list[str]:
    """Return the command of a Python that has only these packages, in an environment that uv makes."""
    uv = str(Path(sys.executable).with_name("uv"))
    options = [option for package in packages for option in ("--with", package)]
    return [uv, "run", "--quiet", "--no-project", "--python", sys.executable, *options, "python"]


def output_of(
    command: Sequence[object],
    *,
    timeout_s: float = _INSTALL_TIMEOUT_S,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end, and return what it prints.

    Raises:
        ConfigError: it cannot be run, fails, or takes too long.
    """
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"it cannot run: {error}.") from None
    if done.returncode:
        raise ConfigError(f"it failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Server:
    """The command of a peer's server, and the environment that it runs in.

    Attributes:
        command: the module and its arguments; `{port}` and `{workers}` are replaced.
        packages: packages of its environment besides those of the scorer; None to run it in this one.
        path: path of the endpoint; empty for gRPC.
    """

    command: str
    packages: tuple[str, ...] | None = None
    path: str = "/predict"
    variables: Mapping[str, str] = field(default_factory=dict)

    def python(self) -> list[str]:
        return [sys.executable] if self.packages is None else python_with(*_COMMON, *self.packages)


@contextmanager
def running(
    name: str, server: Server, workers: int, log: Path, variables: Mapping[str, str], answers: Callable[[str], bool]
) -> Iterator[str]:
    """Start a server, and yield its address as soon as it responds.

    `answers` returns whether the server at an address responds.

    Raises:
        ServerError: it cannot be installed or does not start.
    """
    _install(name, server)
    port = free_port()
    arguments = server.command.format(port=port, workers=workers).split()
    search_path = os.pathsep.join(filter(None, (str(_PROJECT), os.environ.get("PYTHONPATH"))))
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # MLflow calls uvicorn by name
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*server.python(), "-m", *arguments],
            env={**os.environ, **variables, **server.variables, "PYTHONPATH": search_path, "PATH": programs},
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to end it together with all its workers
            preexec_fn=partial(_PRCTL, _PR_SET_PDEATHSIG, signal.SIGTERM),  # also ends when this process is killed
        )
    address, deadline = f"127.0.0.1:{port}", time.monotonic() + _READY_TIMEOUT_S
    try:
        while not answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise ServerError(f"{name} did not start. Its log ends with: {end or 'nothing'}")
            time.sleep(_POLL_INTERVAL_S)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _install(name: str, server: Server) -> None:
    try:
        output_of([*server.python(), "-c", "pass"])
    except ConfigError as error:
        raise ServerError(f"{name} cannot be installed: {error}") from None
