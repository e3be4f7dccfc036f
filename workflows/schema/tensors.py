"""Descriptions of model tensors, with type names for model configs, requests and NumPy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

_NUMPY_NAMES = {
    "BOOL": "bool",
    **{f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BYTES": "object",
}
_DATATYPES = {numpy_name: datatype for datatype, numpy_name in _NUMPY_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input or output of a model. The batch dimension is implicit."""

    name: str  # tensor name, see `rankline.workflows.schema.tensor_names`
    dtype: str  # NumPy's name of the type; "object" for strings, which are UTF-8 bytes
    dims: tuple[int, ...] = (1,)  # shape of a row; -1 for any length
    optional: bool = False  # whether a request may omit the tensor
    is_candidates: bool = False  # whether a row may have one value per candidate; a single value is allowed too

    @classmethod
    def from_config(
        cls, name: str, data_type: str, dims: Iterable[Any], *, optional: bool = False, is_candidates: bool = False
    ) -> "Tensor":
        """Create a tensor description from its declaration in a model config.

        Raises:
            ValueError: NumPy has no such type.
        """
        datatype = data_type.removeprefix("TYPE_").replace("STRING", "BYTES")
        if datatype not in _NUMPY_NAMES:
            raise ValueError(f"{name!r} is of type {datatype}, which NumPy does not support")
        return cls(
            name=name,
            dtype=_NUMPY_NAMES[datatype],
            dims=tuple(map(int, dims)),
            optional=optional,
            is_candidates=is_candidates,
        )

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @cached_property
    def datatype(self) -> str:
        """The type name used in requests, such as INT64."""
        return _DATATYPES[self.dtype]

    @property
    def data_type(self) -> str:
        """The type name used in model configs, such as TYPE_INT64."""
        return f"TYPE_{'STRING' if self.datatype == 'BYTES' else self.datatype}"

    @property
    def is_scalar(self) -> bool:
        """Whether each row holds exactly one value."""
        return self.dims == (1,)

    def zeros(self, num_rows: int) -> npt.NDArray[Any]:
        """Return an array of zeros or empty strings, in which variable dimensions have size 1."""
        shape = (num_rows, *(max(dim, 1) for dim in self.dims))
        return np.full(shape, fill_value(self.numpy_dtype), self.numpy_dtype)


def concat_outputs(outputs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate outputs of shape [N, width] to [N, sum of widths]; a single output is returned unchanged."""
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)


def relative_error(scores: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the error of each score, absolute if the expected magnitude is at most 1, else relative. NaN stays NaN."""
    distance: npt.NDArray[Any] = np.abs(scores - expected) / np.maximum(np.abs(expected), 1)
    return distance


def fill_value(dtype: np.dtype[Any]) -> Any:
    """Return the padding value for `dtype`, either zero or an empty string."""
    return b"" if dtype.hasobject else dtype.type(0)
