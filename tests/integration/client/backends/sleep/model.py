"""Triton backend `sleep`: answers with its input after a time that a script in the model's parameters fixes."""

import time
from collections.abc import Mapping, Sequence
from itertools import count
from json import loads
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A request takes `delay_ms`, every `slow_every`-th takes `slow_ms`, the one numbered `stall_at` takes `stall_ms`.

    Requests are numbered from 1 since the model was loaded.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        parameters = loads(args["model_config"])["parameters"]
        self.script = {name: float(value["string_value"]) for name, value in parameters.items()}
        self.numbers = count(1)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        responses = []
        for request in requests:
            time.sleep(self.delay_ms(next(self.numbers)) / 1e3)
            rows = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", rows)]))
        return responses

    def delay_ms(self, number: int) -> float:
        if number == self.script.get("stall_at"):
            return self.script["stall_ms"]
        if "slow_every" in self.script and number % self.script["slow_every"] == 0:
            return self.script["slow_ms"]
        return self.script["delay_ms"]
