"""What a backend is told to serve, and what it makes of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from rankline.workflows.schema.tensors import Tensor

Array = npt.NDArray[Any]
Run = Callable[..., Sequence[Array]]
"""One array per input of the config, None for an optional one that is left out → one per output."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What Triton says about a model that it wants served.

    Attributes:
        version: the version directory.
        inputs, outputs: as its config declares them.
        max_batch_size: most rows of a request, and of requests that are joined; of candidates, if rows hold several.
        parameters: of `config.pbtxt`.
    """

    version: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    parameters: Mapping[str, str]

    @classmethod
    def from_args(cls, args: Mapping[str, str]) -> "ServedModel":
        """Read what Triton gives to `initialize`; `model_repository` is the model's own folder."""
        config = json.loads(args["model_config"])
        return cls(
            version=Path(args["model_repository"]) / args["model_version"],
            inputs=tuple(_declared(entry) for entry in config["input"]),
            outputs=tuple(_declared(entry) for entry in config["output"]),
            max_batch_size=config["max_batch_size"],
            parameters={name: entry["string_value"] for name, entry in config.get("parameters", {}).items()},
        )


def whole_number(parameters: Mapping[str, str], name: str, default: int) -> int:
    """A parameter of the config."""
    value = parameters.get(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise pb_utils.TritonModelException(f"parameter {name} is {value!r}, expected a whole number.") from None


def _declared(entry: Mapping[str, Any]) -> Tensor:
    return Tensor.from_config(entry["name"], entry["data_type"], entry["dims"], optional=bool(entry.get("optional")))
