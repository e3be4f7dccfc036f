"""The wheel, installed by plain pip as the documents say, in an empty environment and in one that is in use."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.commands.command_line import commands
from tests.harness.process.interpreters import VERSIONS, own_version, suitable_pythons

pytestmark = pytest.mark.timeout(1800)  # pip downloads and unpacks gigabytes

ROOT = Path(__file__).parents[3]
UV = Path(sys.executable).with_name("uv")
PARTS = ("serving", "training", "workflows")
VERSION = [version for version in VERSIONS if version != own_version()][-1]
KERAS = "TF_USE_LEGACY_KERAS=1"
"""What users may have set for other programs of theirs: ours take tf_keras by its own name."""
INSTALL = [
    command
    for command in commands((ROOT / "docs" / "guide" / "installing.md").read_text(encoding="utf-8"))
    if "pip install" in command
]
"""The two commands of the document: the wheel, and what pip cannot resolve."""


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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory to run commands in: what they need is in the wheel."""
    place = tmp_path / "place"
    place.mkdir()
    return place


def install(command: str, environment: Path, wheel: Path, place: Path) -> None:
    """Run a command of the document in an environment, with the wheel that was built."""
    line = re.sub(r"'rankline-\S+?\.whl", f"'{wheel}", command)
    done("env", f"PATH={environment / 'bin'}:{os.environ['PATH']}", "sh", "-ec", line, cwd=place)


def test_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"rankline"}
    own = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rankline").rglob("*.py")}
    parts = {f"rankline/{path.relative_to(ROOT).as_posix()}" for part in PARTS for path in (ROOT / part).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == own | parts


def test_wheel_goes_from_an_empty_environment_to_scores(wheel: Path, place: Path, tmp_path: Path) -> None:
    python = suitable_pythons().get(VERSION)
    if python is None:
        pytest.skip(f"no suitable Python {VERSION} on PATH, in pyenv's folder or in uv's")
    environment = tmp_path / "environment"
    done(python, "-m", "venv", environment, cwd=place)
    rankline = environment / "bin/rankline"
    install(INSTALL[0], environment, wheel, place)
    refused = subprocess.run([rankline, "run", "movielens"], cwd=place, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"packages that are not installed. Run: {INSTALL[1]}" in refused.stderr
    install(INSTALL[1], environment, wheel, place)

    small = ("--rows", "20000", "--epochs", "1", "--batch-sizes", "1", "--json", "result.json")
    done("env", KERAS, rankline, "run", "movielens", *small, cwd=place)
    quality = json.loads((place / "result.json").read_text())["quality"]
    assert quality["served_auc"] == pytest.approx(quality["valid_auc"], abs=1e-4)
    assert quality["valid_auc"] > 0.6
    row = json.loads(done(rankline, "predict", "--userId", "1", "--movieId", "31", cwd=place))
    assert 0 < row["score"] < 1


def test_wheel_leaves_the_packages_of_an_environment_in_use(wheel: Path, place: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin/python"
    done(UV, "venv", "--quiet", "--seed", "--python", sys.executable, environment, cwd=place)
    in_use = ("pandas<3", "tensorflow-cpu==2.21.0", "mlflow", "numpy")
    done(UV, "pip", "install", "--quiet", "--python", python, *in_use, cwd=place)
    show = "import pandas, numpy, mlflow, importlib.metadata as m; print(pandas.__version__, numpy.__version__, "
    show += "mlflow.__version__, m.version('tensorflow-cpu'))"
    before = done(python, "-c", show, cwd=place)
    without_extras = re.sub(r"\[.*\]", "", INSTALL[0])
    install(without_extras, environment, wheel, place)
    assert done(python, "-c", show, cwd=place) == before
    install(INSTALL[1], environment, wheel, place)
    assert done(python, "-c", show, cwd=place) == before
    for name in PARTS:  # which a project may have, too
        (place / name).mkdir()
        (place / name / "__init__.py").write_text("OWNER = 'the project'\n")
    script = "import rankline, serving, training, workflows; rankline.train; rankline.Client; "
    script += "print(serving.OWNER, training.OWNER, workflows.OWNER)"
    (place / "script.py").write_text(script)
    assert done(python, "script.py", cwd=place).split() == ["the", "project"] * 3
