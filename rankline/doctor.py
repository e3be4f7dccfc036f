"""`rankline doctor`: what this machine has, what works when it is tried, and the remedy for what does not."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rankline import horovod_check, interpreter
from rankline.display import in_a_line
from serving.engines import engines
from workflows.errors import RanklineError, install_line
from workflows.extras import tensorflow_problem

_MIN_SHM_BYTES = 256 << 20
_DEFAULT_EXTRA = "cpu"  # what every installation has, with the GPU's in its place


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        works: whether it does.
        detail: what was found, or the remedy.
        required: whether Rankline cannot do without it.
    """

    name: str
    works: bool
    detail: str
    required: bool = True


def examine() -> Iterator[Check]:
    """Run every check, one after another; the ones that import or start something take seconds."""
    for check in _checks():
        yield check()


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
    """A package works when it can be imported, not when it is listed."""

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
    """What brought a module, such as tensorflow-cpu, and its version."""
    names = packages_distributions().get(module.partition(".")[0], ())
    name = next((name for name in names if name == module.replace(".", "-")), names[0] if names else None)
    return f"{name} {version(name)}" if name else "version unknown"


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    total = shutil.disk_usage(path).total if path.is_dir() else 0
    enough = total >= _MIN_SHM_BYTES
    remedy = "" if enough else f", expected {_MIN_SHM_BYTES >> 20} MB (in Docker: --shm-size=1g)"
    return Check(name="shared memory", works=enough, detail=f"/dev/shm has {total >> 20:,} MB{remedy}")


def _server() -> Check:
    name = "embedded Triton"
    try:
        answer = _served()
    except (RanklineError, ImportError, OSError) as error:
        return Check(name=name, works=False, detail=in_a_line(error))
    works = answer == [4, 2]
    detail = f"{_version_of('pytriton')}, started and answered" if works else f"answered {answer}"
    return Check(name=name, works=works, detail=detail)


def _served() -> list[int]:
    """Start the embedded server with a plan of two keys, and ask it."""
    from serving.client import Client
    from serving.model_config import ModelConfig, to_pbtxt
    from serving.plan import Column, ColumnSpec, KeyIndex, TransformPlan
    from serving.server import EmbeddedServer, ServerConfig
    from workflows.tensors import Tensor

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


def _horovod() -> Check:
    problem = horovod_check.problem()
    detail = problem or f"{_version_of('horovod')}, built for this TensorFlow, started with one worker over Gloo"
    return Check(name="horovod", works=problem is None, detail=detail, required=False)


def _gpu() -> Check:
    works = shutil.which("nvidia-smi") is not None
    detail = "nvidia-smi found; TensorFlow uses it with the extra gpu in place of cpu" if works else "none"
    return Check(name="NVIDIA GPU", works=works, detail=detail, required=False)


def _checks() -> Iterator[Callable[[], Check]]:
    yield from (_python, _program("g++"), _program("make"), _shared_memory)
    for engine in engines().values():
        if engine.module:
            yield _package(engine.module, extra=engine.extra, required=engine.extra == _DEFAULT_EXTRA)
    yield from (_horovod, _package("nvtabular"), _package("merlin.systems"), _package("mlflow"), _server, _gpu)
