"""A tensor as it travels: what a model's config, a request and NumPy say of it, in one noun."""

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
    """An input or output of a model, whose first dimension, the batch, goes without saying.

    Attributes:
        name: tensor name, see `rankline.workflows.schema.tensor_names`.
        dtype: NumPy's name of the type; "object" for strings, which are bytes (UTF-8).
        dims: shape of a row; -1 where any length will do.
        optional: a request may leave it out.
        is_candidates: a row holds one value per candidate, and may hold a single one.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    is_candidates: bool = False

    @classmethod
    def from_config(
        cls, name: str, data_type: str, dims: Iterable[Any], *, optional: bool = False, is_candidates: bool = False
    ) -> "Tensor":
        """A tensor as a model's config declares it.

        Raises:
            ValueError: NumPy has no such type.
        """
        datatype = data_type.removeprefix("TYPE_").replace("STRING", "BYTES")
        if datatype not in _NUMPY_NAMES:
            raise ValueError(f"{name!r} is of type {datatype}, which NumPy does not have")
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
        """The type as a request names it, such as INT64."""
        return _DATATYPES[self.dtype]

    @property
    def data_type(self) -> str:
        """The type as a config names it, such as TYPE_INT64."""
        return f"TYPE_{'STRING' if self.datatype == 'BYTES' else self.datatype}"

    @property
    def is_scalar(self) -> bool:
        """Each row holds one value, and cannot hold more."""
        return self.dims == (1,)

    def zeros(self, num_rows: int) -> npt.NDArray[Any]:
        """Rows of zeros, or of empty strings; one value where any length will do."""
        shape = (num_rows, *(max(dim, 1) for dim in self.dims))
        return np.full(shape, fill_value(self.numpy_dtype), self.numpy_dtype)


def side_by_side(outputs: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Outputs of the same rows as one array: a single one as it is, several of [N, width] as [N, sum of widths]."""
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)


def apart(scores: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """How far each score is from the expected one; of those above 1 as a share of it. NaN stays NaN."""
    distance: npt.NDArray[Any] = np.abs(scores - expected) / np.maximum(np.abs(expected), 1)
    return distance


def fill_value(dtype: np.dtype[Any]) -> Any:
    """What padding holds: zero, or the empty string."""
    return b"" if dtype.hasobject else dtype.type(0)
