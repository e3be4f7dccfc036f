"""Where the native backends come from, and what is said where there are none."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankline.serving.engines import engines
from rankline.serving.server.triton_install import (
    add_python_backend,
    assemble_backends,
    find_installation,
    library_of,
    native_backends,
)
from rankline.workflows.native import build
from rankline.workflows.native.build import BuildError, built_objects, find_compiler, object_name

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


def test_without_objects_and_compiler_there_are_none(shipped: Path) -> None:
    found = native_backends.__wrapped__()
    assert (found.objects, found.lacking) == ({}, "g++ was not found")


def test_those_of_a_wheel_are_taken_where_the_c_library_is_not_older(shipped: Path) -> None:
    file = shipped / object_name("nvtabular")
    file.write_bytes(b"GLIBC_2.3\0GLIBC_2.%d\0" % HERE)
    assert native_backends.__wrapped__().objects == {"nvtabular": file}
    file.write_bytes(b"GLIBC_2.3\0GLIBC_2.%d\0" % (HERE + 1))
    assert native_backends.__wrapped__().objects == {}


def test_an_engine_whose_library_is_not_installed_has_none(shipped: Path) -> None:
    for name in ("nvtabular", "tensorflow", "onnxruntime"):
        (shipped / object_name(name)).touch()
    found = native_backends.__wrapped__()
    assert found.objects.keys() == {"nvtabular", *found.libraries}
    assert all(path.is_file() for path in found.libraries.values())
    assert library_of(replace(engines()["tensorflow"], module="not_installed")) is None
    assert library_of(engines()["pytorch"]) is None


@NEEDS_COMPILER
def test_what_is_built_is_there_for_every_engine_with_a_library() -> None:
    directory = built_objects()
    assert built_objects(when_absent=lambda: pytest.fail("it is compiled again")) == directory
    backends = ("identity", "nvtabular", *(engine.backend for engine in engines().values() if engine.library))
    assert all((directory / object_name(name)).is_file() for name in backends)


def test_what_the_compiler_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexpr \"$*\" : '.*dump' > /dev/null || { echo 'broken' >&2; exit 1; }\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match="could not compile the native backends: broken"):
        built_objects()
    assert not list(tmp_path.glob("cache/**/*.so"))


def test_an_object_lies_beside_the_backend_in_python(tmp_path: Path) -> None:
    native = tmp_path / object_name("nvtabular")
    native.write_bytes(b"object")
    assemble_backends(tmp_path / "backends", (), {"nvtabular": native})
    folder = tmp_path / "backends" / "nvtabular"
    assert {file.name for file in folder.iterdir()} == {"model.py", native.name}
    assert not (folder / native.name).is_symlink()  # which Triton refuses
    assert not (tmp_path / "backends" / "tensorflow" / object_name("tensorflow")).exists()


def test_without_a_python_that_fits_there_is_no_python_backend(tmp_path: Path) -> None:
    installation = replace(find_installation(), python_trouble="no shared libpython")
    assemble_backends(tmp_path / "backends", (), {})
    add_python_backend(tmp_path / "backends", installation)
    assert not (tmp_path / "backends" / "python").exists()
