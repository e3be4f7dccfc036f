"""Triton backend that answers each row with what it got for it, as JSON. Inputs that were left out are not in it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Looks at inputs as they come, one request at a time."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer."""
        return [self._answer({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}) for request in requests]

    def _answer(self, inputs: dict[str, Any]) -> Any:
        num_rows = len(next(iter(inputs.values())))
        rows = [{name: _plain(values[i].tolist()) for name, values in inputs.items()} for i in range(num_rows)]
        answer = np.array([[json.dumps(row, sort_keys=True)] for row in rows], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("seen", answer)])


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value
