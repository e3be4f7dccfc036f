"""A real Triton on this machine: finds the tritonserver in the wheel `nvidia-pytriton`, runs it, stops it.

    with EmbeddedServer(ServerConfig(repositories=(Path("model_repository/movielens"),))) as server:
        client = Client(server.endpoints.grpc, "movielens")

The wheel holds the server and its Python backend. A folder with a `model.py` becomes a backend beside it, so models
with `backend: "tensorflow"` and `backend: "nvtabular"` are served by the folders under `serving/backends`.
"""

import http.client
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import psutil

from workflows.errors import ConfigError, ServerError

OWN_BACKENDS = Path(__file__).parent / "backends"
_POLL_INTERVAL_S = 0.02
_STOP_TIMEOUT_S = 10
_MODEL_FAILURES = (
    re.compile(r"failed to load '([^']+)' version \d+: (.+?)\"?$", re.MULTILINE),
    re.compile(r"Poll failed for model directory '([^']+)': (.+?)\"?$", re.MULTILINE),
)
# The one left out is logged wherever there is no GPU.
# Errors, but for those that every start without a GPU logs.
_ERROR = re.compile(
    r'^E\d{4} .*?\] (?!"CudaDriverHelper has not|"?unable to create stream for)"?(.+?)"?$', re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How to run a server.

    Attributes:
        repositories: Triton model repositories; all their models are loaded.
        backends: directories of further backend folders, searched like `serving/backends`.
        host: loopback address to listen on. The release in the wheel has known holes (CVE-2025-23310 and others), so it
            is not put on a network.
        grpc_port, http_port, metrics_port: 0 takes a free one.
        log_path: where the server's log goes; None keeps it only as long as the server runs.
        ready_timeout_s: longest wait for all models to be loaded.
        shm_default_bytes: shared memory that each model instance starts with.
        shm_growth_bytes: how much it grows at a time.
    """

    repositories: tuple[Path, ...]
    backends: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    grpc_port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    log_path: Path | None = None
    ready_timeout_s: float = 120.0
    shm_default_bytes: int = 16 << 20
    shm_growth_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if not self.repositories:
            raise ConfigError("a server without a model repository has nothing to serve. Give at least one directory.")
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            is_loopback = False
        if not is_loopback:
            raise ConfigError(
                f"host {self.host!r} is not a loopback address such as 127.0.0.1. "
                "The embedded server stays on this machine; serve a network from a patched Triton image."
            )
        for name in ("grpc_port", "http_port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 0 (any free port) to 65535.")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Where a running server listens.

    Attributes:
        grpc: HOST:PORT for the client.
        http: URL of the HTTP protocol.
        metrics: URL of the Prometheus metrics.
    """

    grpc: str
    http: str
    metrics: str


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """The parts of an installed nvidia-pytriton."""

    server: Path
    python_backend: Path
    stub: Path
    libraries: Path


class EmbeddedServer:
    """A tritonserver process that lives as long as the `with` block, and never longer than this process.

    `launch.py` runs it and clears up after it, whether it is stopped, ends by itself or this process is killed.

    Args:
        config: how to run it.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._launcher: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._endpoints: Endpoints | None = None
        self._log: BinaryIO | None = None

    def __enter__(self) -> "EmbeddedServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        """Where the server listens.

        Raises:
            ServerError: it is not running.
        """
        if self._endpoints is None:
            raise ServerError("the embedded server is not running. Start it first.")
        return self._endpoints

    @property
    def pid(self) -> int:
        """Process id of tritonserver.

        Raises:
            ServerError: it is not running.
        """
        if self._pid is None:
            raise ServerError("the embedded server is not running. Start it first.")
        return self._pid

    def process_ids(self) -> tuple[int, ...]:
        """The server and the processes of its model instances; empty when it is not running."""
        if self._pid is None:
            return ()
        try:
            return (self._pid, *(child.pid for child in psutil.Process(self._pid).children(recursive=True)))
        except psutil.NoSuchProcess:
            return ()

    def start(self) -> None:
        """Start the server and wait until every model is ready.

        Raises:
            ServerError: this machine cannot run it, a repository or port is not to be had, it died or was not ready
                in time.
        """
        if self._launcher is not None:
            raise ServerError(f"the embedded server is already running with process id {self.pid}.")
        for repository in self.config.repositories:
            if not repository.is_dir():
                raise ServerError(f"model repository {repository} does not exist. Export an ensemble there first.")
        wheel = _find_wheel()
        grpc_port, http_port, metrics_port = _choose_ports(self.config)
        server_id = f"rankline_{os.getpid()}_{secrets.token_hex(4)}_"
        home = Path(tempfile.gettempdir(), f"rankline-server-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self._log = _open_log(self.config.log_path)
            self._launch(home, shm_prefix=server_id, environment=_environment(wheel, home / "python"))
            backends = _assemble_backends(home / "backends", wheel, self.config.backends)
            _make_stub_environment(home / "python")
            self._run(
                str(wheel.server),
                *_flags(self.config, backends, shm_prefix=server_id),
                f"--id={server_id}",
                f"--grpc-port={grpc_port}",
                f"--http-port={http_port}",
                f"--metrics-port={metrics_port}",
            )
            self._wait_until_ready(http_port, server_id)
        except BaseException:
            self.stop()
            raise
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        self._endpoints = Endpoints(
            grpc=f"{host}:{grpc_port}",
            http=f"http://{host}:{http_port}",
            metrics=f"http://{host}:{metrics_port}/metrics",
        )

    def check_alive(self) -> None:
        """Say why if the server has ended by itself.

        Raises:
            ServerError: it has, or it was not started.
        """
        status = self._launcher.poll() if self._launcher is not None else None
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            raise ServerError(f"tritonserver was ended by {name}{self._where()}, not by us. Start it again.")
        if status is not None:
            raise ServerError(f"tritonserver ended with status {status}{self._where()}. {self._reason()}")
        _ = self.endpoints

    def stop(self) -> None:
        """Stop the server, its model processes and what they left in shared memory; nothing to do when stopped."""
        if self._launcher is not None:
            with self._launcher as launcher:  # closes its pipes and waits for it
                launcher.terminate()
        if self._log is not None:
            self._log.close()
        self._launcher = self._pid = self._endpoints = self._log = None

    def _launch(self, home: Path, *, shm_prefix: str, environment: dict[str, str]) -> None:
        launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py"))]
        self._launcher = subprocess.Popen(
            [*launcher, str(os.getpid()), str(home), shm_prefix, str(_STOP_TIMEOUT_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to us, and we stop the server
        )
        self._read_line()

    def _run(self, *command: str) -> None:
        assert self._launcher is not None
        assert self._launcher.stdin is not None
        with self._launcher.stdin as pipe:
            pipe.writelines(os.fsencode(part) + b"\0" for part in command)
        self._pid = int(self._read_line())

    def _read_line(self) -> bytes:
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        if not (line := self._launcher.stdout.readline()):
            raise ServerError(f"tritonserver could not be started{self._where()}. {self._reason()}")
        return line

    def _wait_until_ready(self, http_port: int, server_id: str) -> None:
        assert self._launcher is not None
        deadline = time.monotonic() + self.config.ready_timeout_s
        while not _is_ready(self.config.host, http_port, server_id):
            self._refuse_an_end()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"tritonserver was not ready within {self.config.ready_timeout_s:g} s{self._where()}. "
                    f"{self._reason()}"
                )
            time.sleep(_POLL_INTERVAL_S)
        self._refuse_an_end()
        self._launcher.send_signal(signal.SIGUSR1)

    def _refuse_an_end(self) -> None:
        assert self._launcher is not None
        if self._launcher.poll() is not None:
            raise ServerError(f"tritonserver ended while starting{self._where()}. {self._reason()}")

    def _where(self) -> str:
        return f" (log: {self.config.log_path})" if self.config.log_path else ""

    def _reason(self) -> str:
        assert self._log is not None
        file = self._log.fileno()
        log = os.pread(file, os.fstat(file).st_size, 0)  # the server writes through the same position
        return failure_reason(log.decode("utf-8", errors="replace"))


def _open_log(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile(prefix="rankline-server-")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w+b")
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ServerError(f"the log {path} cannot be written ({reason}). Choose another path.") from None


def check_embedded_server() -> tuple[str, ...]:
    """What keeps the embedded server from running on this machine: one line each with the remedy; empty if nothing."""
    try:
        _find_wheel()
    except ServerError as error:
        return (str(error),)
    return ()


def failure_reason(log: str) -> str:
    """The cause of a failed start in a tritonserver log.

    Args:
        log: the whole log.

    Returns:
        One line for each model that could not be loaded, else the last error, else the last line.
    """
    if models := {name: reason for pattern in _MODEL_FAILURES for name, reason in pattern.findall(log)}:
        return "\n".join(f"Model {name!r}: {_without_traceback(reason)}" for name, reason in models.items())
    lines = _ERROR.findall(log) or log.strip().splitlines()
    return str(lines[-1]) if lines else "It wrote no log."


def _without_traceback(reason: str) -> str:
    message = reason.partition("\\n\\nAt:")[0]  # the log has newlines escaped
    return message.removeprefix("Internal: ").removeprefix("TritonModelException: ")


def _find_wheel() -> _Wheel:
    """Locate the server and check that its stub can run under this interpreter.

    Raises:
        ServerError: not installed, incomplete, or the interpreter does not fit.
    """
    if sys.platform != "linux":
        raise ServerError(f"the embedded server runs on Linux only, this is {sys.platform}. Use a Triton container.")
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ServerError("nvidia-pytriton is not installed, and it carries tritonserver: pip install nvidia-pytriton")
    package = Path(spec.origin).parent
    found = _python_version()
    wheel = _Wheel(
        server=package / "tritonserver" / "bin" / "tritonserver",
        python_backend=package / "tritonserver" / "backends" / "python",
        stub=package / "tritonserver" / "python_backend_stubs" / found / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    if not wheel.server.is_file():
        raise ServerError(f"{wheel.server} is missing: pip install --force-reinstall nvidia-pytriton")
    if not wheel.stub.is_file():
        raise ServerError(f"nvidia-pytriton has no backend stub for Python {found}. Use Python 3.10 or 3.11.")
    if not any((directory / f"libpython{found}.so.1.0").is_file() for directory in _library_directories()):
        raise ServerError(
            f"{sys.executable} has no shared libpython, which Triton's Python backend links. "
            f"Install libpython{found}, or build Python with --enable-shared."
        )
    return wheel


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _library_directories() -> tuple[Path, ...]:
    base = sysconfig.get_config_var("LIBDIR") or ""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return Path(base), Path(base) / multiarch


def _choose_ports(config: ServerConfig) -> tuple[int, int, int]:
    """The ports for gRPC, HTTP and metrics: those asked for if they are free, else any that are."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    probes = []
    try:
        for name in ("grpc_port", "http_port", "metrics_port"):
            probe = socket.socket(family)
            probes.append(probe)  # kept open, so that no port is chosen twice
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = getattr(config, name)
            try:
                probe.bind((config.host, port))
            except OSError as error:
                raise ServerError(
                    f"{name} {port} on {config.host} is not to be had ({os.strerror(error.errno or 0)}). "
                    "Stop what uses it, choose another, or 0 for a free one."
                ) from None
        grpc_port, http_port, metrics_port = (probe.getsockname()[1] for probe in probes)
        return grpc_port, http_port, metrics_port
    finally:
        for probe in probes:
            probe.close()


def _assemble_backends(target: Path, wheel: _Wheel, further: tuple[Path, ...]) -> Path:
    """Make a backend directory: the wheel's Python backend with the stub beside it, our folders, and further ones.

    Files are copied (3 MB), not linked: Triton refuses a backend library that "escapes backend directory".

    Raises:
        ServerError: a backend directory does not exist.
    """
    python = target / "python"
    python.mkdir(parents=True)
    for file in (*wheel.python_backend.iterdir(), wheel.stub):
        shutil.copy(file, python)
    for folder in _backend_folders((OWN_BACKENDS, *further)):
        (target / folder.name).symlink_to(folder)
    return target


def _backend_folders(directories: tuple[Path, ...]) -> Iterator[Path]:
    for directory in directories:
        if not directory.is_dir():
            raise ServerError(f"backend directory {directory} does not exist.")
        yield from (model.parent.absolute() for model in sorted(directory.glob("*/model.py")))


def _flags(config: ServerConfig, backends: Path, shm_prefix: str) -> list[str]:
    """Everything but the ports; hardened after Triton's deployment guide."""
    names = sorted(folder.name for folder in backends.iterdir())
    nobody = secrets.token_hex(16)  # restricts what no client of ours uses to a key that nobody is told
    return [
        *(f"--model-repository={repository.absolute()}" for repository in config.repositories),
        f"--backend-directory={backends}",
        "--model-control-mode=none",
        "--disable-auto-complete-config",
        "--exit-on-error=true",
        "--strict-readiness=true",
        f"--exit-timeout-secs={_STOP_TIMEOUT_S // 2}",
        f"--grpc-address={config.host}",
        f"--http-address={config.host}",
        f"--metrics-address={config.host}",
        f"--grpc-restricted-protocol=shared-memory,trace,logging:rankline-key={nobody}",
        f"--http-restricted-api=shared-memory,trace,logging:rankline-key={nobody}",
        "--allow-gpu-metrics=false",
        *(f"--backend-config={name},shm-region-prefix-name={shm_prefix}" for name in names),
        *(f"--backend-config={name},shm-default-byte-size={config.shm_default_bytes}" for name in names),
        *(f"--backend-config={name},shm-growth-byte-size={config.shm_growth_bytes}" for name in names),
    ]


def _make_stub_environment(target: Path) -> None:
    """Make a virtual environment in which the stub finds every module that this process finds.

    The stub is an embedded interpreter that ignores PYTHONPATH from Python 3.11 on (pybind11 starts it isolated) and
    takes the `python3` on PATH for itself; so that one gets a `pyvenv.cfg` and a .pth file beside it. It looks in its
    working directory before all others, which is why the server runs in its own home: the user's may hold an `enum.py`.
    """
    executable = Path(getattr(sys, "_base_executable", sys.executable))
    programs = target / "bin"
    packages = target / "lib" / f"python{_python_version()}" / "site-packages"
    programs.mkdir(parents=True)
    packages.mkdir(parents=True)
    (programs / "python3").symlink_to(executable)
    (target / "pyvenv.cfg").write_text(
        f"home = {executable.parent}\ninclude-system-site-packages = false\n", encoding="utf-8"
    )
    project = Path(__file__).parents[1]  # first, so that the stub imports the same Rankline as this process
    modules = dict.fromkeys(str(path.absolute()) for path in (project, *map(Path, sys.path)))
    (packages / "rankline.pth").write_text("\n".join(modules) + "\n", encoding="utf-8")


def _environment(wheel: _Wheel, stub_environment: Path) -> dict[str, str]:
    """Ours, with the stub's `python3` first on PATH and libraries in the order that it needs.

    The interpreter's own library directory comes first: with another libpython of the same version, extension modules
    fail with `undefined symbol`.
    """
    libraries = [*map(str, _library_directories()), str(wheel.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(stub_environment / "bin"), os.environ.get("PATH", os.defpath)]),
    }


def _is_ready(host: str, http_port: int, server_id: str) -> bool:
    """Ask whether all models are loaded, of our server and not of one that took the port before it.

    tritonserver opens the gRPC port before the HTTP port, so that one is ours then, too.
    """
    connection = http.client.HTTPConnection(host, http_port, timeout=1)
    try:
        connection.request("GET", "/v2")
        name = json.loads(connection.getresponse().read()).get("name")
        connection.request("GET", "/v2/health/ready")
        return name == server_id and connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return False
    finally:
        connection.close()
