"""Which engines there are, and which of them takes a model; what each does is tested beside this file."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankline.serving.engines import backend_names, engine_for, engine_of_backend, engines, engines_for
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TORCH_SCRIPT
from tests.harness.process.packages import leave_installed

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("trained_format", "name", "backend"),
    [
        (SAVED_MODEL, None, "tensorflow"),
        (SAVED_MODEL, "tensorflow", "tensorflow"),
        (SAVED_MODEL, "onnx", "onnxruntime"),
        (TORCH_SCRIPT, None, "pytorch"),
        (TORCH_SCRIPT, "pytorch", "pytorch"),
        (TORCH_SCRIPT, "onnx", "onnxruntime"),
    ],
)
def test_a_model_is_served_by_what_trained_it_or_by_onnx(trained_format: str, name: str | None, backend: str) -> None:
    engine = engine_for(trained_format, name)
    assert engine.backend == backend
    assert engine_of_backend(backend) is engine


@pytest.mark.parametrize(
    ("trained_format", "name", "expected"),
    [
        (SAVED_MODEL, "pytorch", "takes model.savedmodel: tensorflow, onnx"),
        (TORCH_SCRIPT, "tensorflow", "takes model.pt: pytorch, onnx"),
        (TORCH_SCRIPT, "jax", "takes model.pt: pytorch, onnx"),
    ],
)
def test_another_engine_is_refused(trained_format: str, name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"engine is '{name}', expected one that {expected}"):
        engine_for(trained_format, name)


def test_a_format_that_nothing_runs_is_refused() -> None:
    with pytest.raises(ArtifactError, match="no engine runs model.jax as it is. Available: .*model.savedmodel"):
        engine_for("model.jax")
    with pytest.raises(ConfigError, match="'jax' is not the backend of an engine, expected onnxruntime, pytorch"):
        engine_of_backend("jax")


def test_the_engines_have_the_names_that_users_know() -> None:
    assert sorted(engines()) == ["onnx", "pytorch", "tensorflow"]
    assert list(engines_for(SAVED_MODEL)) == ["tensorflow", "onnx"]


def strings(path: Path) -> Iterator[str]:
    """What a file imports, and its strings but for those that document it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_nothing_but_its_own_folder_names_an_engine() -> None:
    known = engines().values()
    folders = [engine.folder.resolve() for engine in known]
    words = {word for engine in known for word in (engine.name, engine.backend, engine.format, engine.module)}
    importers = ROOT / "serving" / "importers"  # a file for each format that somebody else's model has
    deploy = ROOT / "serving" / "deploy"  # packages that an image is made of
    files = [path for path in (ROOT / "serving").rglob("*.py") if path.parent not in (*folders, importers, deploy)]
    named = {path.name: text for path in files for text in strings(path) if any(word in text for word in words)}
    assert len(files) > 50
    assert named == {}


def test_looking_for_engines_imports_none() -> None:
    heavy = {"tensorflow", "torch", "onnxruntime", "onnx", "pandas", "pyarrow"}
    code = "import sys, rankline.serving.engines; rankline.serving.engines.engines(); "
    code += f"print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


ENGINE = """
from rankline.serving.engines import Engine
ENGINE = Engine(name={name!r}, package=__name__, format="model.npz", converts=("model.savedmodel",))
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages; what is looked up in it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    engines.cache_clear()
    yield tmp_path
    engines.cache_clear()


def install(site: Path, package: str, source: str, value: str) -> None:
    (site / package).mkdir()
    (site / package / "__init__.py").write_text(source, encoding="utf-8")
    (site / package / "model.py").touch()
    leave_installed(site, package, f"[rankline.engines]\nx = {value}\n")


def test_an_engine_of_another_package_is_known_by_its_entry_point(site: Path) -> None:
    install(site, "other_engine", ENGINE.format(name="numpy"), "other_engine:ENGINE")
    engine = engine_for(SAVED_MODEL, "numpy")
    assert (engine.backend, engine.folder) == ("other_engine", site / "other_engine")
    assert "other_engine" in backend_names()
    assert list(engines_for(SAVED_MODEL)) == ["tensorflow", "onnx", "numpy"]
    assert list(engines_for(TORCH_SCRIPT)) == ["pytorch", "onnx"]


def test_engine_with_the_name_of_another_is_refused(site: Path) -> None:
    install(site, "second_onnx", ENGINE.format(name="onnx"), "second_onnx:ENGINE")
    with pytest.raises(ConfigError, match="two engines are called onnx"):
        engines()
