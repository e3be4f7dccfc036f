from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.artifacts import publish
from workflows.errors import ArtifactError
from workflows.trained import BACKENDS, KIND, ONNX, PYTORCH, TENSORFLOW, TrainedModel, padded_rows

DETAILS = {"run_id": "r", "tracking_uri": "sqlite:///x", "metrics": {"valid_auc": 0.7}}


def artifact(path: Path, **details: str) -> Path:
    with publish(path, KIND, details={**DETAILS, **details}) as staging:
        (staging / "model.pt").write_bytes(b"model")
    return path


def test_it_says_what_runs_it_and_where_the_model_is(tmp_path: Path) -> None:
    model = TrainedModel.load(artifact(tmp_path / "m", backend="pytorch"))
    assert model.backend == PYTORCH == BACKENDS["pytorch"]
    assert model.model_path == tmp_path / "m" / "model.pt"
    with pytest.raises(ArtifactError, match=r"holds model\.pt, expected model\.savedmodel"):
        _ = model.saved_model


def test_a_model_from_before_there_were_others_is_tensorflows(tmp_path: Path) -> None:
    model = TrainedModel.load(artifact(tmp_path / "m"))
    assert model.backend == TENSORFLOW
    assert model.saved_model == model.model_path == tmp_path / "m" / "model.savedmodel"


@pytest.mark.parametrize("backend", ["jax", ONNX.name])
def test_a_backend_that_trains_nothing_is_refused(tmp_path: Path, backend: str) -> None:
    with pytest.raises(ArtifactError, match=f"for the backend '{backend}'. Available: tensorflow, pytorch"):
        TrainedModel.load(artifact(tmp_path / "m", backend=backend))


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=5), min_size=1, max_size=8), st.booleans())
def test_padded_rows_give_the_lists_back(lists: list[list[int]], as_arrays: bool) -> None:
    column = pd.Series([np.array(row, np.int64) for row in lists] if as_arrays else lists, dtype=object)
    frame = pd.DataFrame({"tags": column, "price": np.arange(len(lists), dtype=np.float32)})
    rows = padded_rows(frame)
    values, nnzs = rows["tags__values"], rows["tags__nnzs"]
    assert (values.dtype, nnzs.dtype, nnzs.shape) == (np.int64, np.int32, (len(lists), 1))
    assert [row[:count].tolist() for row, count in zip(values, nnzs[:, 0], strict=True)] == lists
    assert not values[np.arange(values.shape[1]) >= nnzs].any()
    assert (rows["price"].dtype, rows["price"].shape) == (np.float32, (len(lists), 1))
