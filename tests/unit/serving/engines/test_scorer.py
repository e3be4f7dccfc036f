"""The models of each engine outside of Triton; what they score is tested with the parity gate and the export."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankline.serving.engines import engine_for
from rankline.serving.engines.merlin_operators import ColumnSchema, Schema, merlin_operator
from rankline.serving.engines.offline import scores_of
from rankline.workflows.schema.model_artifact import TORCH_SCRIPT


def test_the_graphs_pytorch_operator_takes_the_workflows_columns_and_leaves_its_schema_alone(tmp_path: Path) -> None:
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
def test_the_shape_of_scores_follows_from_their_number_whatever_the_outputs_are_called(
    widths: dict[str, int], shape: tuple[int, ...]
) -> None:
    outputs = {name: np.arange(2 * width, dtype=np.float32).reshape(2, width) for name, width in widths.items()}
    scores = scores_of(outputs)
    assert scores.shape == shape
    np.testing.assert_array_equal(scores.reshape(2, -1), np.concatenate(list(outputs.values()), axis=1))
