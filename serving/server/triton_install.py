"""Triton's installation on this machine, its backend directory, and the Python environment for its models.

The wheel `nvidia-pytriton` contains the server and its Python backend. A folder with a `model.py` becomes a backend
next to the Python backend: models with `backend: "nvtabular"` are served by the folder under `serving/python_backends`,
and models of an engine by the engine's folder. If there is a native backend, its shared object is placed next to
`model.py`, and Triton prefers it unless a model's config has `runtime: "model.py"`. The runtime is thus chosen on the
serving machine: a model repository exported for native backends is served in Python if native backends are missing.
"""

import logging
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from rankline.serving.engines import Engine, backend_folders, engines, own_backends
from rankline.serving.triton.config import PYTHON_RUNTIME
from rankline.workflows.core.errors import PINNED, ServerError, install_line
from rankline.workflows.native.build import BuildError, built_objects, object_name, shipped_objects

PYTHON_BACKEND = "python"
STUB = "triton_python_backend_stub"

_LOGGER = logging.getLogger(__name__)

_WITHOUT_LIBRARY = ("identity", "nvtabular")


@dataclass(frozen=True, kw_only=True)
class NativeBackends:
    """Native backends available on this machine.

    Attributes:
        objects: backend → shared object that Triton loads.
        libraries: backend → library of its framework, for backends that need one.
        lacking: why there are no objects; "" if there are.
    """

    objects: Mapping[str, Path] = field(default_factory=dict)
    libraries: Mapping[str, Path] = field(default_factory=dict)
    lacking: str = ""


@cache
def native_backends() -> NativeBackends:
    """Return the native backends that are shipped with this package or cached, compiling them first if necessary.

    Engines whose library is not installed are left out: their Python backend reports what to install.
    """
    try:
        directory = shipped_objects() or built_objects(
            when_absent=lambda: _LOGGER.warning("Compiling the native backends with g++, once.")
        )
    except BuildError as error:
        return NativeBackends(lacking=str(error).partition("\n")[0])
    libraries = {engine.backend: path for engine in engines().values() if (path := library_of(engine))}
    found = {name: directory / object_name(name) for name in (*_WITHOUT_LIBRARY, *libraries)}
    return NativeBackends(
        objects={name: path for name, path in found.items() if path.is_file()},
        libraries=libraries,
    )


def library_of(engine: Engine) -> Path | None:
    """Return the path of the framework's shared library without importing the framework, or None if there is none."""
    spec = find_spec(engine.module) if engine.library else None
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(engine.library)):
            return path
    return None


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Files of an installed server.

    Attributes:
        python_backend: folder of Triton's Python backend.
        stub: executable that runs a Python model.
        libraries: directories for LD_LIBRARY_PATH.
        python_trouble: why Python models cannot run here; "" if they can.
    """

    server: Path
    python_backend: Path
    stub: Path
    libraries: tuple[Path, ...]
    python_trouble: str = ""


def find_installation() -> Installation:
    """Locate the server, and check whether its stub can run under this interpreter."""
    if sys.platform != "linux":
        raise ServerError(
            f"the embedded server runs on Linux only, but this is {sys.platform}. Use a Triton container."
        )
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ServerError(f"nvidia-pytriton, which provides tritonserver, is not installed: {install_line(PINNED)}")
    package = Path(spec.origin).parent
    triton = package / "tritonserver"
    stub = triton / "python_backend_stubs" / _python_version() / STUB
    server = triton / "bin" / "tritonserver"
    if not server.is_file():
        raise ServerError(
            f"{server} is missing. Reinstall the package: pip install --force-reinstall --no-deps "
            "nvidia-pytriton==0.7.0"
        )
    return Installation(
        server=server,
        python_backend=triton / "backends" / "python",
        stub=stub,
        libraries=(package.parent / "nvidia_pytriton.libs",),
        python_trouble=_python_trouble(stub),
    )


def _python_trouble(stub: Path) -> str:
    version = _python_version()
    if not stub.is_file():
        return f"{stub.parent} has no backend stub for Python {version}. Use Python 3.10 to 3.13."
    # `os.access` is False in an unreadable directory, where `Path.is_file` would raise.
    if not any(os.access(directory / f"libpython{version}.so.1.0", os.R_OK) for directory in _python_libraries()):
        return (
            f"{sys.executable} has no shared libpython, which Triton's Python backend links. "
            f"Install libpython{version}, or build Python with --enable-shared."
        )
    return ""


def need_python(models: Sequence[str], repositories: Sequence[Path], native: Collection[str]) -> bool:
    """Whether any model, or any step of an ensemble, runs in Python or has an unreadable config.

    Triton's Python backend is only installed in this case: with it, any process that may load models could have Triton
    run its own `model.py`. The first repository with a model is used; `native` are backends with a native form here.
    """
    waiting, seen = list(models), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        config = _config_of(name, repositories)
        if config is None:
            return True
        if config.platform == "ensemble":
            waiting += [step.model_name for step in config.ensemble_scheduling.step if step.model_name not in seen]
        elif config.runtime == PYTHON_RUNTIME or config.backend not in native:
            return True
    return False


def _config_of(model: str, repositories: Sequence[Path]) -> Any:
    for repository in repositories:
        try:
            return text_format.Parse(
                (repository / model / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig()
            )
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, text_format.ParseError):
            return None
    return None


def assemble_backends(target: Path, further: tuple[Path, ...], native: Mapping[str, Path]) -> None:
    """Create a directory with Rankline's backends and additional ones, but without Triton's Python backend.

    Files that Triton loads are copied (some MB) instead of linked: it rejects a library that "escapes backend
    directory". `native` maps backends to shared objects, for our folders.
    """
    target.mkdir(parents=True)
    for folder in own_backends():
        if folder.name in native:
            (target / folder.name).mkdir()
            (target / folder.name / "model.py").symlink_to(folder / "model.py")
            shutil.copy(native[folder.name], target / folder.name)
        else:
            (target / folder.name).symlink_to(folder)
    for folder in backend_folders(further):
        (target / folder.name).symlink_to(folder)


def add_python_backend(backends: Path, installation: Installation) -> None:
    """Add Triton's Python backend with its stub, unless it is already present or cannot run."""
    target = backends / PYTHON_BACKEND
    if installation.python_trouble or target.exists():
        return
    target.mkdir()
    for file in installation.python_backend.iterdir():
        if file.is_file():  # installers that compile leave a __pycache__
            shutil.copy(file, target)
    stub = target / STUB
    stub.write_bytes(fit_for_numpy(installation.stub.read_bytes()))
    stub.chmod(0o755)


def make_stub_environment(target: Path) -> None:
    """Create a virtual environment in which the stub finds every module that this process finds.

    The stub is an embedded interpreter that ignores PYTHONPATH on Python 3.11 and later (pybind11 starts it isolated)
    and uses the location of the `python3` on PATH. This `python3` therefore gets a `pyvenv.cfg` and a .pth file. The
    stub searches its working directory first, which is why the server runs in its own home: the user's directory may
    contain an `enum.py`.
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
    project = Path(__file__).parents[3]  # first, so that the stub imports the same Rankline as this process
    modules = dict.fromkeys(str(path.absolute()) for path in (project, *map(Path, sys.path)))
    # Editable installs are found through .pth files, which are read in site directories only.
    sites = [f"import site; site.addsitedir({path!r})" for path in modules if path in site.getsitepackages()]
    (packages / "rankline.pth").write_text("\n".join([*modules, *sites]) + "\n", encoding="utf-8")


def remove_environments(begin: float, end: float, directory: Path = Path("/tmp")) -> None:
    """Remove empty directories of Triton's Python backend that were last modified between `begin` and `end`."""
    for path in directory.glob("python_env_*"):
        with suppress(OSError):  # not empty, owned by another user, or gone
            found = path.stat()
            if found.st_uid == os.getuid() and begin <= found.st_mtime <= end:
                path.rmdir()


def environment(installation: Installation, stub_environment: Path) -> dict[str, str]:
    """Return this process's environment, with the stub's `python3` first on PATH and its libraries in LD_LIBRARY_PATH.

    The interpreter's own library directory comes first: with another libpython of the same version, extension modules
    fail with `undefined symbol`.
    """
    libraries = [*map(str, (*_python_libraries(), *installation.libraries)), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(stub_environment / "bin"), os.environ.get("PATH", os.defpath)]),
    }


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _python_libraries() -> tuple[Path, ...]:
    base = sysconfig.get_config_var("LIBDIR") or ""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return Path(base), Path(base) / multiarch


_KNOWN = {  # SHA-256 of the stubs of nvidia-pytriton 0.7.0
    "251c532e0af9c057d50784cc933fd52f304163e238d51e74c0ffc1c1790188b5",  # Python 3.10
    "a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",  # 3.11
    "41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",  # 3.12
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8",  # 3.13
}
_KNOWS_BOTH = b"numpy._core"  # first module that pybind11 2.12 and later import
# x86-64 instructions whose last byte becomes 0x28. These byte sequences occur nowhere else in the files.
_READS = (
    bytes.fromhex("48 63 40 20"),  # movslq 0x20(%rax),%rax: four times, in the conversion of arrays to tensors
    bytes.fromhex("48 8b 06 8b 40 20"),  # mov (%rsi),%rax; mov 0x20(%rax),%eax: once, in the creation of arrays
)
_NUMPY_2_OFFSET = b"\x28"


def fit_for_numpy(stub: bytes) -> bytes:
    """Return the stub that runs Python models, patched if this process's NumPy requires it.

    `nvidia-pytriton` 0.7 is compiled with pybind11 2.10, which reads the item size of an array at NumPy 1's offset in a
    dtype, 32 bytes. NumPy 2 has flags at this offset and the size 8 bytes later, so every array would appear empty. For
    everything else pybind11 calls NumPy. Therefore the five instructions that read the size get the new offset.
    pybind11 2.12 and later support both versions.
    """
    import numpy as np  # imported here: a missing server is reported without NumPy

    if np.lib.NumpyVersion(np.__version__) < "2.0.0" or _KNOWS_BOTH in stub:
        return stub
    if sha256(stub).hexdigest() not in _KNOWN:
        raise ServerError(
            f"NumPy {np.__version__} is installed, but Triton's Python backend on this machine is built for NumPy 1. "
            "This backend cannot be patched, since it is not from nvidia-pytriton 0.7.0 for x86-64. Run pip install "
            "--force-reinstall --no-deps nvidia-pytriton==0.7.0, or use a Triton container."
        )
    for read in _READS:
        stub = stub.replace(read, read[:-1] + _NUMPY_2_OFFSET)
    return stub
