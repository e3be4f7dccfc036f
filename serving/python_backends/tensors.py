"""Compare the tensors in a model's config with the tensors of the model itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from rankline.workflows.schema.tensors import Tensor


def check_tensors(
    model: str, side: str, declared: Sequence[Tensor], found: Mapping[str, np.dtype[Any]], *, all_of_them: bool = True
) -> None:
    """Raise unless declared and actual tensors of a model have the same names and types."""
    names = {tensor.name for tensor in declared}
    if names - set(found) or (all_of_them and set(found) - names):
        raise pb_utils.TritonModelException(
            f"{model} has the {side} {sorted(found)}, config.pbtxt says {sorted(names)}."
        )
    for tensor in declared:
        if found[tensor.name] != tensor.numpy_dtype:
            raise pb_utils.TritonModelException(
                f"{model} has {tensor.name!r} as {found[tensor.name]}, config.pbtxt says {tensor.dtype}."
            )
