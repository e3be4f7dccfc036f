"""Triton backend `nvtabular`: serves the compiled workflow at `<version>/plan`.

A folder with this file is a backend (Triton's "Python-based backend"), so a model repository holds the plan and a
config, and no code. Requests that Triton hands over together are joined, transformed once and split again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.plan import Padded, TransformPlan
from workflows.errors import RanklineError
from workflows.tensor_names import NNZS, VALUES


class TritonPythonModel:
    """One instance of one model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Map the plan into memory and run it once, so that the first request finds its pages there."""
        directory = Path(args["model_repository"]) / args["model_version"] / "plan"
        try:
            self._plan = TransformPlan.load(directory)
        except RanklineError as error:
            raise pb_utils.TritonModelException(f"model {args['model_name']}: {error}") from error
        declared = {entry["name"] for entry in json.loads(args["model_config"])["input"]}
        expected = {spec.name for spec in self._plan.inputs}
        if declared != expected:
            raise pb_utils.TritonModelException(
                f"model {args['model_name']}: config.pbtxt has inputs {sorted(declared)}, the plan {sorted(expected)}. "
                "Export again."
            )
        self._plan.run({spec.name: spec.zeros(1) for spec in self._plan.inputs})

    def execute(self, requests: list[Any]) -> list[Any]:
        """Transform the rows of all requests at once."""
        inputs = {
            spec.name: _join([pb_utils.get_input_tensor_by_name(request, spec.name).as_numpy() for request in requests])
            for spec in self._plan.inputs
        }
        columns = self._plan.run(inputs)
        if len(requests) == 1:
            return [pb_utils.InferenceResponse(_tensors(columns, slice(None)))]
        first = self._plan.inputs[0].name
        ends = np.cumsum([pb_utils.get_input_tensor_by_name(request, first).shape()[0] for request in requests])
        return [
            pb_utils.InferenceResponse(_tensors(columns, slice(begin, end)))
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]


def _join(arrays: list[Any]) -> Any:
    """[num_rows, 1] of each request → [all rows]."""
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)).reshape(-1)


def _tensors(columns: dict[str, Any], rows: slice) -> list[Any]:
    tensors = []
    for name, column in columns.items():
        if isinstance(column, Padded):
            tensors.append(pb_utils.Tensor(name + VALUES, column.values[rows]))
            tensors.append(pb_utils.Tensor(name + NNZS, column.lengths[rows].reshape(-1, 1)))
        else:
            tensors.append(pb_utils.Tensor(name, column[rows].reshape(-1, 1)))
    return tensors
