"""Scoring of data frames, as MLflow requires of logged models."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import NNZS, VALUES

Arrays = Mapping[str, npt.NDArray[Any]]


class FrameScorer:
    """A scorer for data frames of encoded ids. Each value of a list column is an array of ids.

    Args:
        names: input tensors of the model, in the padded layout.
        score: maps tensors by name to outputs by name, (N, 1) or wider.
    """

    def __init__(self, names: Iterable[str], score: Callable[[Arrays], Mapping[str, npt.NDArray[np.float32]]]) -> None:
        self._columns = list(dict.fromkeys(name.removesuffix(VALUES).removesuffix(NNZS) for name in names))
        self._score = score

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        outputs = self._score(padded_rows(frame[self._columns]))
        columns: dict[str, Any] = {
            name: output[:, 0] if output.shape[1] == 1 else list(output) for name, output in outputs.items()
        }
        return pd.DataFrame(columns)
