"""Triton backend `identity`: returns its input, so what a request takes is the cost of Triton and gRPC alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What Triton's Python backend loads; the model has one input `x` and one output `y` of the same type."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Nothing to load."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request with its own rows."""
        inputs = (pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", rows)]) for rows in inputs]
