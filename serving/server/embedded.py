"""Start, supervise and stop a Triton server on this machine.

with EmbeddedServer(ServerConfig(repositories=(Path("model_repository/movielens"),), models=("movielens",))) as server:
    client = Client(server.endpoints.grpc, "movielens")
"""

import contextlib
import logging
import os
import re
import secrets
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rankline.serving.server.admin_api import KEY_HEADER, ModelControl
from rankline.serving.server.logs import FileLog, PipeLog, ServerLog, crash_site, failure_reason
from rankline.serving.server.managed_process import Launched, new_home
from rankline.serving.server.ports import LOOPBACK, choose_ports
from rankline.serving.server.triton_install import (
    PYTHON_BACKEND,
    STUB,
    Installation,
    add_python_backend,
    assemble_backends,
    environment,
    find_installation,
    make_stub_environment,
    native_backends,
    need_python,
    remove_environments,
)
from rankline.workflows.core.errors import ConfigError, ServerError
from rankline.workflows.native.build import object_name

_LOGGER = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.02
_STOP_TIMEOUT_S = 10
_UNLOAD_TIMEOUT_S = 60
_MAX_STARTS = 3
_IDLE_S = 60.0  # a start hangs if the models' processes use less CPU time than `_IDLE_CPU_S` in this time
_IDLE_CPU_S = 0.5
_CRASHES = (-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGSEGV)
_SHM_BYTES = 16 << 20  # initial size and growth per model instance
_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
_CRASHED_MODEL = re.compile(r"Stub process '[^']+' is not healthy")
_Part = TypeVar("_Part")
_TAKEN_PORT = re.compile(r"Socket '[^']*:(\d+)' already in use")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Configuration of an embedded Triton server.

    Attributes:
        repositories: Triton model repositories.
        models: models to load, with the steps of ensembles. Only this process can then load and unload models. If
            empty, all models of the repositories are loaded, and none can be loaded or unloaded later.
        backends: directories of additional backend folders, searched like `serving/python_backends`.
        grpc_port, metrics_port: ports; 0 picks a free port.
        http_port: port; 0 picks a free port. None, the default, disables HTTP, because a JSON request of a few hundred
            kilobytes crashes Triton 24.10.
        log_path: file for the server's log; None keeps the end of the log in memory while the server runs.
        ready_timeout_s: maximum time to wait until all models are loaded.
    """

    repositories: tuple[Path, ...]
    models: tuple[str, ...] = ()
    backends: tuple[Path, ...] = ()
    grpc_port: int = 0
    metrics_port: int = 0
    http_port: int | None = None
    log_path: Path | None = None
    ready_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.repositories:
            raise ConfigError("a server without a model repository has nothing to serve. Pass at least one directory.")
        for name, number in self.ports.items():
            if not 0 <= number <= 65535:
                raise ConfigError(f"{name} is {number}, expected 0 (any free port) to 65535.")
        for (name, number), (other, other_number) in combinations(self.ports.items(), 2):
            if number and number == other_number:
                raise ConfigError(
                    f"{name} and {other} are both {number}, expected different ports. Change one of them."
                )

    @property
    def ports(self) -> dict[str, int]:
        named = {"grpc_port": self.grpc_port, "http_port": self.http_port, "metrics_port": self.metrics_port}
        return {name: number for name, number in named.items() if number is not None}


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses of a running server.

    Attributes:
        grpc: HOST:PORT for the client.
        metrics: URL of the Prometheus metrics.
        http: URL of the HTTP protocol; "" if it is disabled.
    """

    grpc: str
    metrics: str
    http: str = ""


class _RetryableStartError(ServerError):
    """A failed start worth retrying, such as a crash of the server or a model process, a hang or a port conflict."""


class EmbeddedServer:
    """A tritonserver process that runs for the duration of a `with` block and never outlives this process.

    `launch.py` runs the server and cleans up after it whether it is stopped, exits by itself or this process is killed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._launcher: Launched | None = None
        self._pid: int | None = None
        self._begun_at = 0.0
        self._ready_at: float | None = None
        self._endpoints: Endpoints | None = None
        self._ports: dict[str, int] = {}
        """Ports of the last start, by name."""
        self._control: ModelControl | None = None
        self._num_processes: Counter[str] = Counter()  # of each loaded model
        self._log: ServerLog | None = None
        self._backends: Path | None = None
        self._installation: Installation | None = None
        self._python_trouble = ""  # why Python models cannot be loaded

    def __enter__(self) -> "EmbeddedServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        return _running(self._endpoints)

    @property
    def pid(self) -> int:
        return _running(self._pid)

    def process_ids(self) -> tuple[int, ...]:
        """Return the ids of the server and of its model processes; empty if the server is not running."""
        if self._pid is None:
            return ()
        try:
            return (self._pid, *(child.pid for child in psutil.Process(self._pid).children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def start(self) -> None:
        """Start the server and wait until every model is ready.

        Triton's Python backend sometimes corrupts its shared memory under load, or hangs between fork and exec
        (triton-inference-server/server#8882 and #5211). Since a starting server has nothing to lose, it is restarted,
        up to two times, if it or a model's process crashes, if nothing happens for a minute, or if a port was taken
        after it was chosen.

        Raises:
            ServerError: this machine cannot run the server, a repository is missing, a port is in use, or the server
                exited or was not ready in time.
        """
        if self._launcher is not None:
            raise ServerError(f"the embedded server is already running with process id {self.pid}.")
        for repository in self.config.repositories:
            if not repository.is_dir():
                raise ServerError(f"model repository {repository} does not exist. Export an ensemble there first.")
        installation = find_installation()
        if lacking := native_backends().lacking:
            _LOGGER.warning("Serving workflow and model with Python instead of native backends: %s.", lacking)
        for starts_left in reversed(range(_MAX_STARTS)):
            try:
                self._start_once(installation, may_hang=not starts_left)
                break
            except _RetryableStartError as error:
                if not starts_left:
                    raise
                _LOGGER.warning("%s Restarting it.", error)

    def _start_once(self, installation: Installation, *, may_hang: bool) -> None:
        ports = choose_ports(**self.config.ports)
        self._begun_at = time.time()
        home = new_home("server")
        server_id = home.name
        try:
            path = self.config.log_path
            self._log = PipeLog() if path is None else FileLog(path)
            self._python_trouble = installation.python_trouble
            self._launcher = Launched(
                home,
                self._log,
                environment=environment(installation, home / "python"),
                stop_timeout_s=_STOP_TIMEOUT_S,
            )
            native = native_backends()
            self._backends, self._installation = home / "backends", installation
            assemble_backends(self._backends, self.config.backends, native.objects)
            self._add_python_for(*self.config.models)
            make_stub_environment(home / "python")
            self._control = ModelControl(
                address=f"{LOOPBACK}:{ports['grpc_port']}",
                key=secrets.token_hex(16),
                timeout_s=self.config.ready_timeout_s,
            )
            self._pid = self._launcher.run(
                str(installation.server),
                *(f"--model-repository={path}" for path in _plain_paths(self.config.repositories, home)),
                *_flags(self.config, home / "backends", native.libraries, shm_prefix=server_id),
                f"--id={server_id}",
                *(f"--{name.replace('_', '-')}={number}" for name, number in ports.items()),
                hidden=_restrictions(self.config, self._control.key),
            )
            self._wait_until_ready(self._control, server_id, ports.values(), may_hang=may_hang)
        except EOFError:
            reason = f"tritonserver could not be started{self._where()}. {self._reason()}"
            self.stop()
            raise ServerError(reason) from None
        except BaseException:
            self.stop()
            raise
        self._ready_at = time.time()
        self._num_processes = self._count_processes()
        self._ports = ports
        self._endpoints = Endpoints(
            grpc=self._control.address,
            http=f"http://{LOOPBACK}:{ports['http_port']}" if "http_port" in ports else "",
            metrics=f"http://{LOOPBACK}:{ports['metrics_port']}/metrics",
        )

    def restart(self, models: tuple[str, ...]) -> None:
        """Restart the server with `models` at the same addresses. If it was ready, its log is saved with suffix `.old`.

        Raises:
            ServerError: as in `start`, or the server was never ready. The call may be repeated.
            OSError: the log cannot be renamed.
        """
        if not self._ports:
            raise ServerError("the embedded server was not started. Start it first.")
        was_ready = self._ready_at is not None
        self.stop()
        if was_ready and self.config.log_path is not None:
            with contextlib.suppress(FileNotFoundError):  # the file was moved
                self.config.log_path.replace(f"{self.config.log_path}.old")
        ports: dict[str, Any] = dict(self._ports)
        self.config = replace(self.config, models=models, **ports)
        self.start()

    def exit_reason(self) -> str | None:
        """Return the reason why the server exited on its own, or None if it is running or was not started."""
        launcher, pid = self._launcher, self._pid
        if launcher is None or pid is None or _is_running(pid):
            return None
        status = launcher.wait()
        if status < 0:
            assert self._log is not None
            site = crash_site(self._log.text())
            name = signal.Signals(-status).name
            return f"tritonserver was killed by {name}{self._where()}, not by Rankline{site and f'; it was in {site}'}."
        return f"tritonserver exited with status {status}{self._where()}. {self._reason()}"

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, or reload it if its files changed. The old model serves requests until the new one is ready.

        `config` is a configuration as JSON, used instead of the file. If the model's process crashes, loading is
        retried once; see `start`.

        Raises:
            ServerError: the model cannot be loaded, or the server's config names no models, so that none can be loaded.
        """
        self._add_python_for(model)
        control = _running(self._control)
        try:
            control.load(model, config)
        except ServerError as error:
            if not _CRASHED_MODEL.search(str(error)):
                raise
            _LOGGER.warning("Model %r: %s Reloading it.", model, error)
            control.load(model, config)
        self._num_processes[model] = self._count_processes()[model]  # other models may have lost processes

    def _add_python_for(self, *models: str) -> None:
        """Add the Python backend if any of `models` needs it, or unconditionally if no models are given."""
        assert self._backends is not None
        assert self._installation is not None
        native = [folder.name for folder in self._backends.iterdir() if (folder / object_name(folder.name)).is_file()]
        if not models or need_python(models, self.config.repositories, native):
            add_python_backend(self._backends, self._installation)

    def unload(self, *models: str) -> None:
        """Unload models, and wait until their requests are answered and their processes have exited."""
        control = _running(self._control)
        native = {model for model in models if not self._num_processes[model]}  # Triton never reports dead processes
        for model in models:
            control.unload(model)
            del self._num_processes[model]
        deadline = time.monotonic() + _UNLOAD_TIMEOUT_S
        while left := sorted(set(models) & self._count_processes().keys() | native & control.loaded()):
            if time.monotonic() > deadline:
                raise ServerError(f"model {left[0]!r} is still loaded {_UNLOAD_TIMEOUT_S} s after the unload request.")
            time.sleep(_POLL_INTERVAL_S)

    def dead_models(self) -> set[str]:
        """Return the loaded models that have lost a process, which Triton does not restart.

        Native models have no process.
        """
        running = self._count_processes()
        return {model for model, count in self._num_processes.items() if running[model] < count}

    def is_ready(self, model: str, version: int) -> bool | None:
        """Whether the given version of a model is ready, or None if the server does not respond within a second."""
        return _running(self._control).is_model_ready(model, version)

    def interrupt(self) -> None:
        """Terminate the server without waiting, so that `start` or `load` in another thread fails.

        Call `stop` afterwards.
        """
        if (launcher := self._launcher) is not None:
            launcher.terminate()

    def kill(self) -> None:
        """Kill a server that no longer responds; call `restart` or `stop` afterwards."""
        if self._pid is not None and self.exit_reason() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _count_processes(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with contextlib.suppress(psutil.NoSuchProcess):  # the server has exited
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    command = child.cmdline()  # empty when it has exited
                    if command and Path(command[0]).name == STUB:
                        found[Path(command[1]).parents[1].name] += 1
        return found

    def stop(self) -> None:
        """Stop the server and its model processes, and remove their shared memory. Calling it again has no effect."""
        if self._launcher is not None:
            self._launcher.stop()
            remove_environments(self._begun_at, self._ready_at or time.time())
        if self._log is not None:
            self._log.close()
        self._launcher = self._pid = self._endpoints = self._control = self._log = self._ready_at = None

    def _wait_until_ready(
        self, control: ModelControl, server_id: str, ports: Collection[int], *, may_hang: bool
    ) -> None:
        assert self._launcher is not None
        deadline = time.monotonic() + self.config.ready_timeout_s
        cpu_s, look_at = 0.0, time.monotonic() + _IDLE_S
        while not (control.is_ready(server_id) and _listens(self.pid, ports)):
            self._raise_if_exited()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"tritonserver was not ready within {self.config.ready_timeout_s:g} s{self._where()}. "
                    f"{self._reason()}"
                )
            if not may_hang and time.monotonic() > look_at:
                used_s = self._cpu_seconds_of_models()
                if used_s is not None and used_s < cpu_s + _IDLE_CPU_S:
                    raise _RetryableStartError(f"tritonserver hung while starting{self._where()}. {self._reason()}")
                cpu_s, look_at = used_s or 0.0, time.monotonic() + _IDLE_S
            time.sleep(_POLL_INTERVAL_S)
        self._raise_if_exited()
        self._launcher.mark_running()
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if control.key in " ".join(psutil.Process(self.pid).cmdline()):
                _LOGGER.warning("This system forbids ptrace: other users can read the server's keys in its arguments.")

    def _cpu_seconds_of_models(self) -> float | None:
        """Return the CPU time of the models' processes; None if there are none.

        The server's own CPU time is excluded because it grows with each readiness check.
        """
        processes = self.process_ids()[1:]
        if not processes:
            return None
        used_s = 0.0
        for pid in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                used_s += times.user + times.system
        return used_s

    def _raise_if_exited(self) -> None:
        assert self._launcher is not None
        if (status := self._launcher.poll()) in _CRASHES:
            name = signal.Signals(-status).name
            raise _RetryableStartError(f"tritonserver crashed while starting ({name}){self._where()}. {self._reason()}")
        if status is not None:
            reason = self._reason()
            taken = _TAKEN_PORT.search(reason)
            is_lost = taken is not None and int(taken[1]) not in self.config.ports.values()
            error = _RetryableStartError if is_lost or _CRASHED_MODEL.search(reason) else ServerError
            raise error(f"tritonserver exited while starting{self._where()}. {reason}")

    def _where(self) -> str:
        return f" (log: {self.config.log_path})" if self.config.log_path else ""

    def _reason(self) -> str:
        assert self._log is not None
        return " ".join(filter(None, (failure_reason(self._log.text()), self._python_trouble)))


def _running(part: _Part | None) -> _Part:
    if part is None:
        raise ServerError("the embedded server is not running. Start it first.")
    return part


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _listens(pid: int, ports: Collection[int]) -> bool:
    """Whether the process listens on all `ports`. Triton opens the HTTP and metrics ports after gRPC, and exits if any
    port is taken.
    """
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN} >= set(ports)


def _plain_paths(repositories: tuple[Path, ...], home: Path) -> Iterator[Path]:
    """Yield the repository paths, linking to those with special characters, since Triton splits paths at spaces."""
    for number, repository in enumerate(repositories):
        path = repository.absolute()
        if not _PLAIN_PATH.fullmatch(str(path)):
            link = home / f"repository-{number}"
            link.symlink_to(path)
            path = link
        yield path


def _flags(config: ServerConfig, backends: Path, libraries: Mapping[str, Path], *, shm_prefix: str) -> list[str]:
    """Return all options except ports, keys and repositories, with the hardening of Triton's deployment guide."""
    names = sorted({PYTHON_BACKEND} | {folder.name for folder in backends.iterdir()})
    return [
        f"--backend-directory={backends}",
        f"--model-control-mode={'explicit' if config.models else 'none'}",
        *(f"--load-model={model}" for model in config.models),
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--strict-readiness=false",  # otherwise a new version that fails to load makes the old one look down
        f"--exit-timeout-secs={_STOP_TIMEOUT_S // 2}",
        f"--grpc-address={LOOPBACK}",
        f"--allow-http={'false' if config.http_port is None else 'true'}",
        f"--http-address={LOOPBACK}",
        "--allow-vertex-ai=false",  # AIP_MODE in the environment would open this HTTP server to the network
        f"--metrics-address={LOOPBACK}",
        "--allow-gpu-metrics=false",
        *(f"--backend-config={name},shm-region-prefix-name={shm_prefix}" for name in names),
        *(f"--backend-config={name},shm-default-byte-size={_SHM_BYTES}" for name in names),
        *(f"--backend-config={name},shm-growth-byte-size={_SHM_BYTES}" for name in names),
        *(f"--backend-config={name},library={path}" for name, path in libraries.items()),
    ]


def _restrictions(config: ServerConfig, key: str) -> list[str]:
    """Return the options that restrict admin protocols to requests with a secret key, which clients never receive."""
    closed = "trace,logging,shared-memory" + (",model-repository" if config.models else "")
    flags = ("--grpc-restricted-protocol", "--http-restricted-api")
    return [f"{flag}={closed}:{KEY_HEADER}={key}" for flag in flags]
