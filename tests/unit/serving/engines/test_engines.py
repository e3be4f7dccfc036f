"""Which engines there are, which of them takes a model, and their models outside of Triton."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rankline.serving.engines import backend_names, engine_for, engine_of_backend, engines, engines_for
from rankline.serving.engines.merlin_operators import ColumnSchema, Schema, merlin_operator
from rankline.serving.engines.offline import scores_of
from rankline.serving.engines.onnxruntime.from_torch_script import to_onnx
from rankline.serving.engines.pytorch.offline import Model
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.schema.model_artifact import SAVED_MODEL, TORCH_SCRIPT
from tests.harness.hostile.files.torch_script import archive, forward
from tests.harness.process.programs import leave_installed

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
def test_engine_is_that_of_the_trained_format_or_onnx(trained_format: str, name: str | None, backend: str) -> None:
    engine = engine_for(trained_format, name)
    assert engine.backend == backend
    assert engine_of_backend(backend) is engine


@pytest.mark.parametrize(
    ("trained_format", "name", "expected"),
    [
        (SAVED_MODEL, "pytorch", "cannot serve model.savedmodel. Available engines: tensorflow, onnx"),
        (TORCH_SCRIPT, "tensorflow", "cannot serve model.pt. Available engines: pytorch, onnx"),
        (TORCH_SCRIPT, "jax", "cannot serve model.pt. Available engines: pytorch, onnx"),
    ],
)
def test_engine_of_another_format_is_refused(trained_format: str, name: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"engine '{name}' {expected}"):
        engine_for(trained_format, name)


def test_format_without_an_engine_is_refused() -> None:
    with pytest.raises(
        ArtifactError, match=r"no engine runs model\.jax without conversion\. Supported formats.*model.savedmodel"
    ):
        engine_for("model.jax")
    with pytest.raises(ConfigError, match="unknown engine backend 'jax', expected one of onnxruntime, pytorch"):
        engine_of_backend("jax")


def test_listing_engines_imports_none() -> None:
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


def test_engine_of_another_package_is_found_by_its_entry_point(site: Path) -> None:
    install(site, "other_engine", ENGINE.format(name="numpy"), "other_engine:ENGINE")
    engine = engine_for(SAVED_MODEL, "numpy")
    assert (engine.backend, engine.folder) == ("other_engine", site / "other_engine")
    assert "other_engine" in backend_names()
    assert list(engines_for(SAVED_MODEL)) == ["tensorflow", "onnx", "numpy"]
    assert list(engines_for(TORCH_SCRIPT)) == ["pytorch", "onnx"]


def test_engine_with_the_name_of_another_is_refused(site: Path) -> None:
    install(site, "second_onnx", ENGINE.format(name="onnx"), "second_onnx:ENGINE")
    with pytest.raises(ConfigError, match="two engines are named onnx"):
        engines()


def test_pytorch_operator_takes_the_workflows_columns(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated")
        traced: Any = torch.jit.trace(lambda user: user.to(torch.float32) / 2, torch.zeros((2, 1), dtype=torch.int64))
    traced.save(str(tmp_path / "model.pt"))
    encoded = Schema([ColumnSchema("user", dtype=np.int64)])
    operator = engine_for(TORCH_SCRIPT).load_trained(tmp_path / "model.pt").operator(encoded)
    assert isinstance(operator, merlin_operator("pytorch", "PredictPyTorch"))
    assert (operator.input_schema.column_names, operator.output_schema.column_names) == (["user"], ["score"])
    assert encoded["user"].properties == {}


@pytest.mark.parametrize(
    ("widths", "shape"),
    [
        ({"score": 1}, (2,)),
        ({"score": 3}, (2, 3)),
        ({"stars": 1}, (2,)),
        ({"stars": 3}, (2, 3)),
        ({"score": 1, "stars": 3}, (2, 4)),
    ],
)
def test_score_shape_follows_from_the_number_of_scores(widths: dict[str, int], shape: tuple[int, ...]) -> None:
    outputs = {name: np.arange(2 * width, dtype=np.float32).reshape(2, width) for name, width in widths.items()}
    scores = scores_of(outputs)
    assert scores.shape == shape
    np.testing.assert_array_equal(scores.reshape(2, -1), np.concatenate(list(outputs.values()), axis=1))


@pytest.mark.parametrize("load", [Model, lambda path: to_onnx(SimpleNamespace(model_path=path), 17)])
def test_torchscript_that_writes_files_is_refused(load: Callable[[Path], Any], tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    (tmp_path / "model.pt").write_bytes(archive(forward(f'return torch.from_file("{effect}", True, 4)')))
    with pytest.raises(ArtifactError, match=r"contains \['from_file'\]"):
        load(tmp_path / "model.pt")
    assert not effect.exists()
