"""Arguments that Triton passes to a Python backend."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from rankline.workflows.schema.tensors import Tensor

Array = npt.NDArray[Any]
Run = Callable[..., Sequence[Array]]
"""One array per input of the config, None for an omitted optional input → one array per output."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Triton's description of a model to serve.

    `max_batch_size` is the maximum number of rows in a request or joined requests; of candidates, if rows have several.
    """

    version: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    parameters: Mapping[str, str]

    @classmethod
    def from_args(cls, args: Mapping[str, str]) -> "ServedModel":
        """Parse the arguments of Triton's `initialize`, in which `model_repository` is the model's own directory."""
        config = json.loads(args["model_config"])
        return cls(
            version=Path(args["model_repository"]) / args["model_version"],
            inputs=tuple(_declared(entry) for entry in config["input"]),
            outputs=tuple(_declared(entry) for entry in config["output"]),
            max_batch_size=config["max_batch_size"],
            parameters={name: entry["string_value"] for name, entry in config.get("parameters", {}).items()},
        )


def whole_number(parameters: Mapping[str, str], name: str, default: int) -> int:
    value = parameters.get(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise pb_utils.TritonModelException(f"parameter {name} is {value!r}, expected an integer.") from None


def _declared(entry: Mapping[str, Any]) -> Tensor:
    return Tensor.from_config(entry["name"], entry["data_type"], entry["dims"], optional=bool(entry.get("optional")))


def check_tensors(
    model: str, side: str, declared: Sequence[Tensor], found: Mapping[str, np.dtype[Any]], *, all_of_them: bool = True
) -> None:
    """Raise TritonModelException unless the model's tensors have the declared names and types."""
    names = {tensor.name for tensor in declared}
    if names - set(found) or (all_of_them and set(found) - names):
        raise pb_utils.TritonModelException(
            f"{model} has the {side} {sorted(found)}, but config.pbtxt declares {sorted(names)}."
        )
    for tensor in declared:
        if found[tensor.name] != tensor.numpy_dtype:
            raise pb_utils.TritonModelException(
                f"{model} has {tensor.name!r} as {found[tensor.name]}, but config.pbtxt declares {tensor.dtype}."
            )
