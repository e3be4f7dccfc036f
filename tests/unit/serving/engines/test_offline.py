"""The models of each engine outside of Triton; what they score is tested with the parity gate and the export."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from serving.engines import engine_for
from serving.merlin import ColumnSchema, Schema, merlin_operator
from workflows.trained import TORCH_SCRIPT


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
