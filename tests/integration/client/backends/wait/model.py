"""Triton backend that returns its input `x` after as many milliseconds as its largest value says.

A negative value waits for as long as there is a file `hold` in the model's directory, and makes a file `held` there.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One request after another."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Find the directory."""
        self._directory = Path(args["model_repository"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer, late."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def _answer(self, x: Any) -> Any:
        if x.max() >= 0:
            time.sleep(float(x.max()) / 1e3)
        elif (self._directory / "hold").exists():
            (self._directory / "held").touch()
            while (self._directory / "hold").exists():
                time.sleep(0.005)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
