"""The container stack without a container engine.

The services of `docker-compose.yml` run as their files say, command lines and health checks word for word, each in
namespaces that bubblewrap makes of what the compose file asks for: the user, no capabilities, no new privileges, a
read-only root, the mounts, the tmpfs, the environment. They share a network of their own in which they have their
names. Only the root file systems are not those of the images: programs come from this machine, Triton's from the wheel
`nvidia-pytriton`, laid out as in NVIDIA's image, and Python packages from environments with what the Dockerfile pins.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from serving.native.build import built_objects, find_compiler, object_name
from tests.support.deployment import CONTAINER, ROOT, dockerfile_stage
from tests.support.interpreters import suitable_pythons
from tests.support.programs import need_program

PYTHON = "3.12"
Bind = tuple[str, Path, str]  # bubblewrap's option, source, target


# What this machine has


def base_python() -> Path:
    """A Python 3.12 with a shared library, which Triton's Python backend links; skips the test if there is none."""
    found = suitable_pythons().get(PYTHON)
    if found is None:
        pytest.skip(f"no Python {PYTHON} with a shared libpython: pyenv install {PYTHON}, with --enable-shared")
    return found.resolve()


def environment(requirements: str, *, imports: str) -> Path:
    """A Python 3.12 environment with exactly what a file in `serving/container` pins; made once, then kept.

    Args:
        requirements: the file.
        imports: modules that will be imported, for which bytecode is written: services cannot write it.
    """
    digest = hashlib.sha256((CONTAINER / requirements).read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankline"
    target = cache / f"{Path(requirements).stem}-{PYTHON}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        if not (target / "whole").exists():
            shutil.rmtree(target, ignore_errors=True)
            uv, python = str(Path(sys.executable).with_name("uv")), str(target / "bin" / "python")
            _run(uv, "venv", "--quiet", "--python", str(base_python()), str(target))
            install = (uv, "pip", "install", "--quiet", "--python", python, "--only-binary", ":all:")
            _run(*install, "--requirement", str(CONTAINER / requirements))
            _run(python, "-c", f"import {imports}")
            (target / "whole").touch()
    return target


def _run(*command: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


# Namespaces

_SYSTEM: tuple[Bind, ...] = (
    ("--ro-bind", Path("/usr"), "/usr"),
    *(("--ro-bind-try", Path(file), file) for file in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl")),
)
_USERS = {"root": 0, "postgres": 999, "triton-server": 1000, "nobody": 65534}
"""As the images have them."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of the compose file, and the root file system that its image would have.

    Attributes:
        name: in the compose file.
        compose: its entry.
        entrypoint: of the image.
        layers: what the root file system is made of.
        directory: where the program starts.
        variables: environment that the image sets.
        volumes: directory for each named volume.
        secrets: file for each secret.
    """

    name: str
    compose: Mapping[str, Any]
    entrypoint: Sequence[str] = ()
    layers: Sequence[Bind] = ()
    directory: str = "/"
    variables: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)

    @property
    def command(self) -> list[str]:
        """What the container would run."""
        return [*self.compose.get("entrypoint", self.entrypoint), *self.compose.get("command", ())]

    @property
    def health_check(self) -> list[str]:
        """What would tell that it is healthy."""
        kind, *command = self.compose["healthcheck"]["test"]
        assert kind == "CMD"
        return command

    def sandbox(self, etc: Path) -> list[str]:
        """The command line of bubblewrap, up to the program."""
        user, _, group = str(self.compose["user"]).partition(":")
        uid = _USERS.get(user) or int(user)
        assert self.compose["cap_drop"] == ["ALL"]
        assert self.compose["security_opt"] == ["no-new-privileges:true"]  # bubblewrap has no other way
        mounts = [*_SYSTEM, *(("--ro-bind", file, f"/etc/{file.name}") for file in etc.iterdir()), *self.layers]
        for volume in self.compose.get("volumes", ()):
            if isinstance(volume, str):
                source, target = volume.split(":")
                mounts.append(("--bind", self.volumes[source], target))
            else:
                option = "--ro-bind" if volume["read_only"] else "--bind"
                mounts.append((option, ROOT / volume["source"], volume["target"]))
        mounts += [
            ("--ro-bind", self.secrets[name], f"/run/secrets/{name}") for name in self.compose.get("secrets", ())
        ]
        tmpfs = [entry.split(":")[0] for entry in self.compose.get("tmpfs", ())]
        variables = {**self.variables, **self.compose.get("environment", {})}
        return [
            "bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc",
            "--uid", str(uid), "--gid", group or str(uid), "--cap-drop", "ALL",
            *(part for name in ("bin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")),
            "--proc", "/proc", "--dev", "/dev",
            *(part for target in tmpfs for part in ("--perms", "1777", "--tmpfs", target)),
            *(part for option, source, target in mounts for part in (option, str(source), target)),
            *(["--remount-ro", "/"] if self.compose["read_only"] else []),
            "--chdir", self.directory,
            "--clearenv", *(part for name in variables for part in ("--setenv", name, str(variables[name]))),
        ]  # fmt: skip


class Network:
    """A network in which services run under their names; it reaches nothing else, and they end with it.

    Args:
        directory: for logs and the few files of /etc.
    """

    def __init__(self, directory: Path) -> None:
        self._logs, self._etc = directory / "logs", directory / "etc"
        self._logs.mkdir()
        self._etc.mkdir()
        names = "localhost triton mlflow postgres prometheus grafana"
        (self._etc / "hosts").write_text(f"127.0.0.1 {names}\n", encoding="utf-8")
        users = (f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in _USERS.items())
        (self._etc / "passwd").write_text("".join(users), encoding="utf-8")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Network":
        need_program("bwrap", package="bubblewrap")
        need_program("nsenter", package="util-linux")
        reading, writing = os.pipe()
        everything = ["--unshare-user", "--unshare-net", "--dev-bind", "/", "/", "--die-with-parent"]
        holder = subprocess.Popen(
            ["bwrap", *everything, "--info-fd", str(writing), "sleep", "infinity"],
            pass_fds=[writing],
            stderr=subprocess.PIPE,
        )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            info = pipe.read()
        if not info:
            reason = holder.communicate()[1].decode().strip()
            pytest.skip(f"bubblewrap cannot make namespaces here ({reason}): allow user namespaces, or run as root")
        self._running[""] = holder
        target = str(json.loads(info)["child-pid"])
        while not Path(f"/proc/{target}/uid_map").read_text(encoding="ascii"):
            time.sleep(0.01)
        self._enter = ["nsenter", "--target", target, "--user", "--net", "--preserve-credentials", "--"]
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._running):
            self._end(self._running[name])

    def stop(self, service: Service) -> None:
        """End a service at once."""
        self._end(self._running.pop(service.name))

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        with process:
            process.kill()

    def start(self, service: Service) -> None:
        """Start a service and wait until its own health check passes."""
        with (self._logs / service.name).open("wb") as log:
            self._running[service.name] = subprocess.Popen(
                [*self._enter, *service.sandbox(self._etc), *service.command], stdout=log, stderr=log
            )
        while self.run(service, service.health_check).returncode != 0:
            assert self._running[service.name].poll() is None, f"{service.name} ended.\n{self.log(service)}"
            time.sleep(0.5)

    def run(
        self, service: Service, command: Sequence[str], *also: Bind, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program as in the service's container, which need not run."""
        mounts = [part for option, source, target in also for part in (option, str(source), target)]
        return subprocess.run(
            [*self._enter, *service.sandbox(self._etc), *mounts, *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def call(self, *command: str, stdin: str = "") -> str:
        """Run a program of this machine, with all its files, in the network; what it writes."""
        hosts = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(self._etc / "hosts"), "/etc/hosts"]
        done = subprocess.run(
            [*self._enter, *hosts, *command], input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self, service: Service) -> str:
        """What a service has written."""
        return (self._logs / service.name).read_text(encoding="utf-8", errors="replace")


# The services


def triton_service(compose_entry: Mapping[str, Any], context: Path, secrets: Mapping[str, Path]) -> Service:
    """Triton's own files come from the wheel; everything else is what the Dockerfile copies and installs."""
    import pytriton

    stage = dockerfile_stage("triton")
    assert stage["USER"] == compose_entry["user"]
    wheel = Path(pytriton.__file__).parent
    root = wheel / "tritonserver"
    stub = root / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    python = base_python().parents[1]
    imports = "aiohttp, onnxruntime, pyarrow.parquet, tensorflow, tritonclient.grpc"
    packages = environment("requirements.txt", imports=imports) / "lib" / f"python{PYTHON}" / "site-packages"
    (context / "packages").mkdir(exist_ok=True)
    (context / "serving/native/objects").mkdir(exist_ok=True)
    backend = "/opt/tritonserver/backends/python"
    return Service(
        name="triton",
        compose=compose_entry,
        entrypoint=stage["ENTRYPOINT"],
        layers=(
            ("--ro-bind", root / "bin", "/opt/tritonserver/bin"),
            ("--ro-bind", wheel.parent / "nvidia_pytriton.libs", "/opt/tritonserver/lib"),
            *(("--ro-bind", file, f"{backend}/{file.name}") for file in (*(root / "backends/python").iterdir(), stub)),
            ("--ro-bind", python, str(python)),
            ("--ro-bind", context, "/opt/rankline"),
            ("--ro-bind", packages, "/opt/rankline/packages"),
            ("--ro-bind", native_objects(), "/opt/rankline/serving/native/objects"),
        ),
        directory=stage["WORKDIR"],
        variables={"PATH": f"{python / 'bin'}:/usr/bin", **stage["ENV"]},
        secrets=secrets,
    )


def native_objects() -> Path:
    """What the Dockerfile compiles; skips the test where there is no compiler."""
    if find_compiler() is None:
        pytest.skip("g++ compiles the native backends (apt-get install g++)")
    return built_objects()


def plain_service(compose_entry: Mapping[str, Any], directory: Path) -> Service:
    """The stage `plain`: Triton, the native backends and the libraries that they open; nothing of Python.

    Args:
        compose_entry: of a Triton with our supervisor, of which all but the command and the health check is taken.
        directory: for the backends.
    """
    import pytriton

    stage = dockerfile_stage("plain")
    assert stage["USER"] == compose_entry["user"]
    wheel = Path(pytriton.__file__).parent
    packages = next((environment("requirements.txt", imports="tensorflow") / "lib").glob("*/site-packages"))
    for name, libraries in (
        ("nvtabular", []),
        ("tensorflow", sorted(packages.glob("tensorflow/libtensorflow_*.so.2"))),
        ("onnxruntime", sorted(packages.glob("onnxruntime/capi/libonnxruntime.so.*"))),
    ):
        (directory / name).mkdir(parents=True)
        shutil.copy(native_objects() / object_name(name), directory / name)
        for library in libraries:
            at = "libonnxruntime.so" if name == "onnxruntime" else library.name
            shutil.copy(library, directory / name / at)
    return Service(
        name="triton",
        compose={**compose_entry, "healthcheck": {"test": ["CMD", "true"]}},
        entrypoint=stage["ENTRYPOINT"],
        layers=(
            ("--ro-bind", wheel / "tritonserver" / "bin", "/opt/tritonserver/bin"),
            ("--ro-bind", wheel.parent / "nvidia_pytriton.libs", "/opt/tritonserver/lib"),
            ("--ro-bind", directory, "/opt/rankline/backends"),
        ),
        directory=stage["WORKDIR"],
        variables={"PATH": "/opt/tritonserver/bin:/usr/bin", "LD_LIBRARY_PATH": "/opt/tritonserver/lib"},
    )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A small MovieLens ensemble that was trained and exported by the Python of this test."""

    prepared: Any
    trained: Any
    work: Path
    repository: Path

    def export(self, engine: str | None = None) -> Any:
        """Export a further version."""
        from serving.export import export_ensemble
        from serving.export_config import ExportConfig

        config = ExportConfig(engine=engine, max_batch_size=16_384)
        return export_ensemble(self.prepared, self.trained, self.repository / "movielens", config, name="movielens")
