"""The backend directory that a server gets."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rankline.serving.server.triton_install import (
    add_python_backend,
    find_installation,
    make_stub_environment,
    need_python,
    remove_environments,
)
from rankline.serving.triton.config import PYTHON_RUNTIME
from tests.factories.ensembles import NAME, publish_tiny


def test_what_an_installer_compiled_beside_the_python_backend_stays_there(tmp_path: Path) -> None:
    found = find_installation()
    source = tmp_path / "python"
    shutil.copytree(found.python_backend, source)
    (source / "__pycache__").mkdir(exist_ok=True)
    (source / "__pycache__" / "module.pyc").write_bytes(b"")
    (tmp_path / "backends").mkdir()
    add_python_backend(tmp_path / "backends", replace(found, python_backend=source))
    made = {path.name for path in (tmp_path / "backends" / "python").iterdir()}
    assert "triton_python_backend_utils.py" in made
    assert "__pycache__" not in made


def test_only_empty_directories_of_the_servers_own_start_are_removed(tmp_path: Path) -> None:
    for name, at in (("python_env_own", 150), ("python_env_full", 150), ("python_env_old", 50), ("other", 150)):
        (tmp_path / name).mkdir()
        if name.endswith("full"):
            (tmp_path / name / "packed").touch()
        os.utime(tmp_path / name, (at, at))
    remove_environments(100, 200, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"python_env_full", "python_env_old", "other"}


def test_the_stub_finds_a_package_that_is_installed_to_be_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ("runtime", "native", "needed"),
    [("", ["nvtabular"], False), (PYTHON_RUNTIME, ["nvtabular"], True), ("", [], True)],
)
def test_an_ensemble_needs_python_where_a_step_does(
    tmp_path: Path, runtime: str, native: list[str], needed: bool
) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10, runtime=runtime)
    assert need_python([NAME], [tmp_path, ensemble.path], native) == needed
    assert need_python([ensemble.steps[0]], [ensemble.path], native) == needed


def test_what_cannot_be_read_may_need_it(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10)
    (ensemble.path / ensemble.steps[1] / "config.pbtxt").write_text("nonsense {")
    assert need_python([NAME], [ensemble.path], ["nvtabular"])
    assert need_python(["nobody"], [ensemble.path], ["nvtabular"])
