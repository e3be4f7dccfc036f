"""Triton backend `identity`: returns its input, so that its latency is only the overhead of Triton and gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model class for Triton's Python backend. A model has one input `x` and one output `y` of the same type."""

    def initialize(self, args: Mapping[str, str]) -> None:
        pass

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        inputs = (pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", rows)]) for rows in inputs]
