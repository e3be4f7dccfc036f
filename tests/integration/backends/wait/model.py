"""Triton backend that returns its input `x` after as many milliseconds as its largest value says."""

import time
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One request after another."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer, late."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def _answer(self, x: Any) -> Any:
        time.sleep(float(x.max()) / 1e3)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
