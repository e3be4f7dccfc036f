"""The backends that a server gets, and where there are none."""

import importlib.util
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rankline.serving.engines import engines
from rankline.serving.server.triton_install import (
    assemble_backends,
    fit_for_numpy,
    library_of,
    make_stub_environment,
    native_backends,
    need_python,
    remove_environments,
)
from rankline.serving.triton.config import PYTHON_RUNTIME
from rankline.workflows.core.errors import ServerError
from rankline.workflows.native import build
from rankline.workflows.native.build import BuildError, built_objects, find_compiler, object_name
from tests.factories.ensembles import NAME, publish_tiny


def test_setup_removes_only_its_own_empty_environment(tmp_path: Path) -> None:
    for name, at in (("python_env_own", 150), ("python_env_full", 150), ("python_env_old", 50), ("other", 150)):
        (tmp_path / name).mkdir()
        if name.endswith("full"):
            (tmp_path / name / "packed").touch()
        os.utime(tmp_path / name, (at, at))
    remove_environments(100, 200, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"python_env_full", "python_env_old", "other"}


def test_stub_finds_an_editable_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, source = tmp_path / "site-packages", tmp_path / "source/shop.py"
    source.parent.mkdir()
    packages.mkdir()
    source.write_text("PRICE = 7")
    (packages / "shop_finder.py").write_text(  # as setuptools installs it: no directory of it is in sys.path
        "from importlib.util import spec_from_file_location\n\n\nclass Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        return spec_from_file_location(name, {str(source)!r}) if name == 'shop' else None\n"
    )
    (packages / "shop.pth").write_text("import sys, shop_finder; sys.meta_path.append(shop_finder.Finder())\n")
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr("site.getsitepackages", lambda: [str(packages)])
    make_stub_environment(tmp_path / "stub")
    command = [tmp_path / "stub/bin/python3", "-I", "-c", "import shop, pyarrow; print(shop.PRICE)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7\n"


@pytest.mark.parametrize(
    ("runtime", "native", "needed"), [("", ["nvtabular"], False), (PYTHON_RUNTIME, ["nvtabular"], True), ("", [], True)]
)
def test_ensemble_needs_python_where_a_step_does(tmp_path: Path, runtime: str, native: list[str], needed: bool) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10, runtime=runtime)
    assert need_python([NAME], [tmp_path, ensemble.path], native) == needed
    assert need_python([ensemble.steps[0]], [ensemble.path], native) == needed


NEEDS_COMPILER = pytest.mark.skipif(find_compiler() is None, reason="g++ compiles the native backends")
HERE = int((os.confstr("CS_GNU_LIBC_VERSION") or "glibc 2.0").rpartition(".")[2])


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as in a wheel, on a machine without a compiler and with an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_SHIPPED", tmp_path / "objects")
    (tmp_path / "objects").mkdir()
    return tmp_path / "objects"


def test_native_backends_need_objects_or_a_compiler(shipped: Path) -> None:
    found = native_backends.__wrapped__()
    assert (found.objects, found.lacking) == ({}, "g++ was not found")


def test_shipped_backends_are_taken_unless_libc_is_older(shipped: Path) -> None:
    file = shipped / object_name("nvtabular")
    file.write_bytes(b"GLIBC_2.3\0GLIBC_2.%d\0" % HERE)
    assert native_backends.__wrapped__().objects == {"nvtabular": file}
    file.write_bytes(b"GLIBC_2.3\0GLIBC_2.%d\0" % (HERE + 1))
    assert native_backends.__wrapped__().objects == {}


def test_engine_without_its_library_has_no_native_backend(shipped: Path) -> None:
    for name in ("nvtabular", "tensorflow", "onnxruntime"):
        (shipped / object_name(name)).touch()
    found = native_backends.__wrapped__()
    assert found.objects.keys() == {"nvtabular", *found.libraries}
    assert all(path.is_file() for path in found.libraries.values())
    assert library_of(replace(engines()["tensorflow"], module="not_installed")) is None
    assert library_of(engines()["pytorch"]) is None


@NEEDS_COMPILER
def test_native_backends_are_built_for_every_engine_with_a_library() -> None:
    directory = built_objects()
    assert built_objects(when_absent=lambda: pytest.fail("it is compiled again")) == directory
    backends = ("identity", "nvtabular", *(engine.backend for engine in engines().values() if engine.library))
    assert all((directory / object_name(name)).is_file() for name in backends)


def test_compiler_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexpr \"$*\" : '.*dump' > /dev/null || { echo 'broken' >&2; exit 1; }\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match="failed to compile the native backends: broken"):
        built_objects()
    assert not list(tmp_path.glob("cache/**/*.so"))


def test_native_backend_lies_beside_the_python_one(tmp_path: Path) -> None:
    native = tmp_path / object_name("nvtabular")
    native.write_bytes(b"object")
    assemble_backends(tmp_path / "backends", (), {"nvtabular": native})
    folder = tmp_path / "backends" / "nvtabular"
    assert {file.name for file in folder.iterdir()} == {"model.py", native.name}
    assert not (folder / native.name).is_symlink()  # which Triton refuses
    assert not (tmp_path / "backends" / "tensorflow" / object_name("tensorflow")).exists()


SPEC = importlib.util.find_spec("pytriton")
assert SPEC
assert SPEC.origin
STUBS = Path(SPEC.origin).parent / "tritonserver" / "python_backend_stubs"


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_stub_is_patched_for_numpy_2(version: str) -> None:
    stub = (STUBS / version / "triton_python_backend_stub").read_bytes()
    fit = fit_for_numpy(stub)
    assert len(fit) == len(stub)
    changed = [(stub[at], fit[at]) for at in range(len(stub)) if stub[at] != fit[at]]
    assert changed == [(0x20, 0x28)] * 5


def test_unknown_stub_is_refused() -> None:
    with pytest.raises(
        ServerError,
        match=r"built for NumPy 1\. This backend cannot be patched, since it is not from nvidia-pytriton 0\.7\.0",
    ):
        fit_for_numpy(b"\x7fELF numpy.core.multiarray")
