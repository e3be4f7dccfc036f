from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankline.workflows.schema.tensor_names import NNZS, VALUES


def read(path: Path) -> dict[str, Any]:
    """Column → weight, and the `bias`."""
    with np.load(path) as weights:
        return dict(weights)


def score(weights: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """float32 [num_rows, 1]; of a list counts the sum of its values."""
    total = weights["bias"]
    for name, tensor in tensors.items():
        if name.endswith(VALUES):
            inside = np.arange(tensor.shape[1]) < tensors[name.removesuffix(VALUES) + NNZS]
            total = total + weights[name.removesuffix(VALUES)] * np.where(inside, tensor, 0).sum(axis=1, keepdims=True)
        elif not name.endswith(NNZS):
            total = total + weights[name] * tensor
    return (1 / (1 + np.exp(-total))).astype(np.float32)
