"""Checks of `rankline doctor`, each of which tries a feature and suggests a remedy if it does not work."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from rankline.doctor import interpreter
from rankline.launch import horovod_check
from rankline.recipes.workspace import WORK_DIR
from rankline.runs.store import check_store, uri_of
from rankline.serving.engines import engines
from rankline.serving.server.ports import GRPC_PORT, choose_ports
from rankline.terminal.console import format_error
from rankline.workflows.core.errors import PINNED, RanklineError, ServerError, install_line
from rankline.workflows.core.machine import cpu_name, num_cores
from rankline.workflows.core.optional_packages import tensorflow_problem
from rankline.workflows.native.build import cache_directory

_MIN_SHM_BYTES = 256 << 20
_MIN_MEMORY_BYTES = 2 << 30  # required by `rankline run movielens`
_DEFAULT_EXTRA = "cpu"  # every installation has this extra or gpu


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    works: bool
    detail: str
    required: bool = True


def examine() -> Iterator[Check]:
    """Yield each check's result as soon as it is available. Checks that import or start something take seconds."""
    for check in _checks():
        yield check()


def report(checks: Iterable[Check]) -> dict[str, Any]:
    return {
        "rankline": version("rankline"),
        "python": sys.version,
        "system": platform.platform(),
        "cpu": cpu_name(),
        "num_cpus": num_cores(),
        "checks": [asdict(check) for check in checks],
    }


def _python() -> Check:
    lack = interpreter.lack()
    found = f"{sys.version.split()[0]}, shared libpython, C headers"
    return Check(name="Python", works=not lack, detail=lack or found)


def _program(name: str) -> Callable[[], Check]:
    def check() -> Check:
        path = shutil.which(name)
        return Check(name=name, works=path is not None, detail=path or f"apt-get install {name}", required=False)

    return check


def _package(module: str, *, extra: str = _DEFAULT_EXTRA, required: bool = True) -> Callable[[], Check]:
    """Return a check that a package can be imported, not merely that it is installed."""

    def check() -> Check:
        if module == "tensorflow" and (problem := tensorflow_problem(extra)):
            return Check(name=module, works=False, detail=problem, required=required)
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken package can raise anything
            return Check(name=module, works=False, detail=f"{error} ({install_line(extra)})", required=required)
        return Check(name=module, works=True, detail=_version_of(module), required=required)

    return check


def _version_of(module: str) -> str:
    """Return the name and version of the package that provides a module, such as tensorflow-cpu."""
    names = packages_distributions().get(module.partition(".")[0], ())
    name = next((name for name in names if name == module.replace(".", "-")), names[0] if names else None)
    return f"{name} {version(name)}" if name else "version unknown"


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    total = shutil.disk_usage(path).total if path.is_dir() else 0
    enough = total >= _MIN_SHM_BYTES
    remedy = "" if enough else f", expected {_MIN_SHM_BYTES >> 20} MB (in Docker: --shm-size=1g)"
    return Check(name="shared memory", works=enough, detail=f"/dev/shm has {total >> 20:,} MB{remedy}")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    works = memory.available >= _MIN_MEMORY_BYTES
    remedy = "" if works else f"; the recipes need at least {_MIN_MEMORY_BYTES / 1e9:.1f} GB: close other programs"
    detail = f"{memory.total / 1e9:.1f} GB, of which {memory.available / 1e9:.1f} GB available{remedy}"
    return Check(name="memory", works=works, detail=detail, required=False)


def _ports() -> Check:
    taken = [port for port in range(GRPC_PORT - 1, GRPC_PORT + 2) if _is_taken(port)]
    detail = f"{', '.join(map(str, taken))} in use: rankline serve --port 0 picks free ports" if taken else "free"
    return Check(name=f"ports from {GRPC_PORT - 1}", works=not taken, detail=detail, required=False)


def _is_taken(port: int) -> bool:
    try:
        choose_ports(port=port)
    except ServerError:
        return True
    return False


def _cache() -> Check:
    cache = cache_directory()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    works = os.access(existing, os.W_OK)
    detail = str(cache) if works else f"{existing} is not writable: set XDG_CACHE_HOME to another directory"
    return Check(name="cache", works=works, detail=detail, required=False)


def _containers() -> Check:
    remedy = (
        "docker compose 2 and a container engine are needed only for the container stack and rankline image: "
        "docs/guide/containers.md"
    )
    try:
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Check(name="container engine", works=False, detail=f"none; {remedy}", required=False)
    works = done.returncode == 0
    detail = f"Docker {done.stdout.strip()}" if works else f"docker is installed, but no engine responds; {remedy}"
    return Check(name="container engine", works=works, detail=detail, required=False)


def _server() -> Check:
    name = "embedded Triton"
    try:
        answer = _served()
    except (RanklineError, ImportError, OSError) as error:
        return Check(name=name, works=False, detail=format_error(error))
    works = answer == [4, 2]
    detail = f"{_version_of('pytriton')}, started and responded" if works else f"answered {answer}"
    return Check(name=name, works=works, detail=detail)


def _served() -> list[int]:
    from rankline.serving.client import Client
    from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
    from rankline.serving.triton.config import ModelConfig, to_pbtxt
    from rankline.workflows.plan import Column, ColumnSpec, KeyIndex, TransformPlan
    from rankline.workflows.schema.tensors import Tensor

    plan = TransformPlan(
        inputs=(ColumnSpec(name="key", dtype="int64"),),
        indexes=(KeyIndex.build("key", np.array([7, 8])),),
        columns=(Column(name="id", index=0, values=np.array([2, 3, 4])),),
    )
    config = ModelConfig(
        name="doctor",
        backend="nvtabular",
        inputs=(Tensor(name="key", dtype="int64"),),
        outputs=(Tensor(name="id", dtype="int64"),),
        max_batch_size=8,
    )
    with TemporaryDirectory(prefix="rankline-doctor-") as repository:
        model = Path(repository) / config.name
        plan.save(model / "1" / "plan")
        (model / "config.pbtxt").write_text(to_pbtxt(config), encoding="utf-8")
        with (
            EmbeddedServer(ServerConfig(repositories=(Path(repository),))) as server,
            Client(server.endpoints.grpc, config.name) as client,
        ):
            answer: list[int] = client.predict({"key": [8, 1]}).tolist()
    return answer


def _store() -> Check:
    try:
        uri = uri_of(WORK_DIR)
        check_store(uri)
    except RanklineError as error:
        return Check(name="MLflow store", works=False, detail=format_error(error))
    return Check(name="MLflow store", works=True, detail=uri)


def _horovod() -> Check:
    problem = horovod_check.problem()
    detail = problem or f"{_version_of('horovod')}, built for this TensorFlow, started with one worker over Gloo"
    return Check(name="horovod", works=problem is None, detail=detail, required=False)


def _gpu() -> Check:
    works = shutil.which("nvidia-smi") is not None
    detail = "nvidia-smi found; TensorFlow uses the GPU with the extra gpu instead of cpu" if works else "none"
    return Check(name="NVIDIA GPU", works=works, detail=detail, required=False)


def _checks() -> Iterator[Callable[[], Check]]:
    yield from (_python, _program("g++"), _program("make"), _memory, _shared_memory, _cache, _ports)
    for engine in engines().values():
        if engine.module:
            yield _package(engine.module, extra=engine.extra, required=engine.extra == _DEFAULT_EXTRA)
    yield from (
        _horovod,
        _package("nvtabular", extra=PINNED),
        _package("merlin.systems", extra=PINNED),
        _package("mlflow"),
        _store,
        _server,
        _containers,
        _gpu,
    )
