"""`rankline doctor`: what this machine has, what it lacks, and the remedy."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_MIN_SHM_BYTES = 256 << 20


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


def examine() -> list[Check]:
    """Run every check."""
    return [check() for check in CHECKS]


def _python() -> Check:
    found = sys.version_info[:2]
    return Check(
        name="Python 3.10 or 3.11",
        works=found in ((3, 10), (3, 11)),
        detail=f"{sys.version.split()[0]} at {sys.executable}",
    )


def _compiler() -> Check:
    path = shutil.which("g++")
    return Check(name="C++ compiler", works=path is not None, detail=path or "apt-get install g++", required=False)


def _package(name: str, what: str) -> Callable[[], Check]:
    def check() -> Check:
        try:
            return Check(name=what, works=True, detail=f"{name} {version(name)}")
        except PackageNotFoundError:
            return Check(name=what, works=False, detail="pip install -c constraints.txt -e '.[cpu]'")

    return check


def _tensorflow() -> Check:
    found = []
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    detail = found[0] if found else "pip install -c constraints.txt -e '.[cpu]' (or '.[gpu]')"
    return Check(name="TensorFlow", works=bool(found), detail=detail)


def _server() -> Check:
    from serving.server import check_embedded_server

    problems = check_embedded_server()
    detail = "; ".join(problems) or f"tritonserver in nvidia-pytriton {version('nvidia-pytriton')}, libpython shared"
    return Check(name="embedded Triton", works=not problems, detail=detail)


def _shared_memory() -> Check:
    path = Path("/dev/shm")
    total = shutil.disk_usage(path).total if path.is_dir() else 0
    enough = total >= _MIN_SHM_BYTES
    remedy = "" if enough else f", expected {_MIN_SHM_BYTES >> 20} MB (docker run --shm-size=1g)"
    return Check(name="shared memory", works=enough, detail=f"/dev/shm has {total >> 20:,} MB{remedy}")


def _gpu() -> Check:
    works = shutil.which("nvidia-smi") is not None
    detail = "nvidia-smi found; training uses it with pip install -c constraints.txt -e '.[gpu]'" if works else "none"
    return Check(name="NVIDIA GPU", works=works, detail=detail, required=False)


CHECKS: tuple[Callable[[], Check], ...] = (
    _python,
    _compiler,
    _package("nvtabular", "NVTabular"),
    _package("merlin-systems", "merlin-systems"),
    _tensorflow,
    _package("mlflow", "MLflow"),
    _server,
    _shared_memory,
    _gpu,
)
