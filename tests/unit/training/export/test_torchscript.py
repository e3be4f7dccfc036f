import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from rankline.training.export.torchscript import _load_pyfunc, export_torch_script
from rankline.training.models.config import StepConfig
from rankline.training.models.tabular import TorchMLPConfig
from rankline.training.models.tabular.torch_mlp import Output
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.torchscript.program import load_torch_script
from tests.harness.hostile.files.torch_script import archive, forward
from tests.oracles.tolerance import SCORE_ROUNDING

WIDTH = 4
NAMES = ["userId", "movieId", "genres__values", "genres__nnzs", "age"]


@pytest.fixture(scope="module")
def exported(spec: FeatureSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    torch.manual_seed(0)
    held = {"dropout": 0.5, "embedding_dropout": 0.5, "l2_embedding": 0.1, "l2_linear": 0.1}
    model = TorchMLPConfig(embedding_init=1.0, **held).build(spec, StepConfig())
    for table in model.linear:  # type: ignore[union-attr]
        torch.nn.init.normal_(table.weight)  # type: ignore[arg-type]
    path = tmp_path_factory.mktemp("export") / "model.pt"
    export_torch_script(model, spec, path)
    return model, path


def layouts(num_rows: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The same random rows for the model and for its TorchScript."""
    rng = np.random.default_rng(num_rows)
    nnzs = rng.integers(0, WIDTH + 1, num_rows).astype(np.int32)
    padded = rng.integers(3, 8, (num_rows, WIDTH)) * (np.arange(WIDTH) < nnzs[:, None])
    single = {
        "userId": torch.from_numpy(rng.integers(0, 60, (num_rows, 1))),
        "movieId": torch.from_numpy(rng.integers(0, 40, (num_rows, 1))),
        "age": torch.from_numpy(rng.random((num_rows, 1), np.float32)),
    }
    offsets = (np.cumsum(nnzs) - nnzs).astype(np.int64)[:, None]
    lists = (torch.from_numpy(padded[padded > 0]), torch.from_numpy(offsets))
    tensors = {"genres__values": torch.from_numpy(padded), "genres__nnzs": torch.from_numpy(nnzs[:, None])}
    return {**single, "genres": lists}, {**single, **tensors}


@pytest.mark.parametrize("num_rows", [0, 1, 333])
def test_torchscript_scores_as_the_model_whatever_the_rows_and_the_padding(exported: Any, num_rows: int) -> None:
    model, path = exported
    inputs, tensors = layouts(num_rows)
    with torch.no_grad():
        expected = torch.sigmoid(model.eval()(inputs).logit)[:, None]
        score = load_torch_script(path, torch, remedy="")[0](**tensors)
        wide = torch.nn.functional.pad(tensors["genres__values"], (0, 3), value=10**9)
        of_wide = load_torch_script(path, torch, remedy="")[0](**{**tensors, "genres__values": wide})
    assert score.dtype == torch.float32
    torch.testing.assert_close(score, expected)
    torch.testing.assert_close(of_wide, expected)


def test_arguments_have_the_names_of_the_tensors(exported: Any) -> None:
    schema = load_torch_script(exported[1], torch, remedy="")[0].forward.schema
    assert [argument.name for argument in schema.arguments[1:]] == NAMES
    assert [str(result.type) for result in schema.returns] == ["Tensor"]


def test_file_names_no_python_module_to_import(exported: Any) -> None:
    with zipfile.ZipFile(exported[1]) as archive:
        pickles = [archive.read(name) for name in archive.namelist() if name.endswith(".pkl")]
    named = {str(arg) for data in pickles for opcode, arg, _ in pickletools.genops(data) if opcode.name == "GLOBAL"}
    assert named
    assert {name.replace(".", " ").split()[0] for name in named} <= {"__torch__", "torch", "collections"}


def test_pyfunc_scores_data_frames(exported: Any) -> None:
    model, path = exported
    frame = pd.DataFrame({"userId": [3, 4], "movieId": [5, 6], "genres": [[3, 4, 5], []], "age": [0.5, 0.25]})
    inputs = {
        "userId": torch.tensor([[3], [4]]),
        "movieId": torch.tensor([[5], [6]]),
        "genres": (torch.tensor([3, 4, 5]), torch.tensor([[0], [3]])),
        "age": torch.tensor([[0.5], [0.25]]),
    }
    with torch.no_grad():
        expected = torch.sigmoid(model.eval()(inputs).logit).numpy()
    scorer = _load_pyfunc(str(path))
    np.testing.assert_allclose(scorer.predict(frame)["score"], expected, atol=SCORE_ROUNDING)
    empty = scorer.predict(frame.assign(genres=[[], []]))
    assert empty["score"].between(0, 1).all()


def test_model_that_looks_at_its_rows_is_refused(spec: FeatureSpec, tmp_path: Path) -> None:
    class Peeking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, inputs: Any) -> Output:
            logit = inputs["age"].reshape(-1) if inputs["userId"].sum() > 0 else inputs["age"].reshape(-1) * self.weight
            return Output(logit, self.weight)

    with pytest.raises(ExportError, match="cannot be exported for serving: Converting a tensor to a Python boolean"):
        export_torch_script(Peeking(), spec, tmp_path / "model.pt")


def test_pyfunc_refuses_a_program_that_writes_files(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(archive(forward('torch.save(x, "/nonexistent/effect")\nreturn x')))
    with pytest.raises(ArtifactError, match=r"contains \['save'\]"):
        _load_pyfunc(str(tmp_path / "model.pt"))
