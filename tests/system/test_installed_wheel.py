"""The wheel on the newest other Python of this machine: with its pins, from nothing to served scores.

Each environment is empty before, and so is the directory in which the commands run: what they need is in the wheel.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import commands
from tests.support.interpreters import VERSIONS, own_version, suitable_pythons

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
PACKAGES = {"rankline", "serving", "training", "workflows"}
VERSION = [version for version in VERSIONS if version != own_version()][-1]
KERAS = "TF_USE_LEGACY_KERAS=1"
"""What users may have set for other programs of theirs: ours take tf_keras by its own name."""
EXTRAS = "cpu,onnx"


def done(*command: str | Path, cwd: Path, stdin: str | None = None) -> str:
    """What a command says; with none of the checkout's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "MAKE"))}
    result = subprocess.run(command, cwd=cwd, env=kept, input=stdin, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
    assert "Traceback" not in result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the files that git knows, as building leaves others beside them."""
    copy = tmp_path_factory.mktemp("copy")
    for name in done("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    built = tmp_path_factory.mktemp("wheel")
    result = subprocess.run([UV, "build", "-q", "--wheel", "--out-dir", built, copy], capture_output=True, text=True)
    if result.returncode and "setuptools" in result.stderr:
        pytest.skip(f"setuptools cannot be had to build the wheel: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    return next(built.glob("*.whl"))


def test_the_wheel_holds_the_four_packages_and_the_lock(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        lock = archive.read("rankline/constraints.txt")
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert lock == (ROOT / "constraints.txt").read_bytes()
    modules = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_the_document_says_how() -> None:
    shown = commands((ROOT / "docs" / "installing.md").read_text(encoding="utf-8"))
    assert shown[1] == f"python -m rankline.requirements {EXTRAS} | pip install --no-deps -r /dev/stdin"


def test_from_an_empty_environment_to_scores(wheel: Path, tmp_path: Path) -> None:
    python = suitable_pythons().get(VERSION)
    if python is None:
        pytest.skip(f"no suitable Python {VERSION} on PATH, in pyenv's folder or in uv's")
    environment, place = tmp_path / "environment", tmp_path / "place"
    place.mkdir()
    installed = environment / "bin/python"
    install = (UV, "pip", "install", "--quiet", "--python", installed, "--no-deps")
    done(UV, "venv", "--quiet", "--seed", "--python", python, environment, cwd=place)
    done(*install, wheel, cwd=place)
    requirements = done(installed, "-m", "rankline.requirements", EXTRAS, cwd=place)
    done(*install, "-r", "-", cwd=place, stdin=requirements)

    small = ("--rows", "5000", "--epochs", "1", "--batch-sizes", "1", "--json", "result.json")
    rankline = environment / "bin/rankline"
    done("env", KERAS, rankline, "run", "movielens", *small, cwd=place)
    quality = json.loads((place / "result.json").read_text())["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    row = json.loads(done(rankline, "predict", "--userId", "1", "--movieId", "31", cwd=place))
    assert 0 < row["score"] < 1

    pip = (installed, "-m", "pip", "install", "--no-index", "--no-deps", "-r", "/dev/stdin")
    assert "Collecting" not in done(*pip, cwd=place, stdin=requirements)  # it reads the same, and lacks nothing
