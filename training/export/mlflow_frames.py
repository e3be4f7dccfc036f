"""What MLflow asks of a logged model: scores of a data frame as a data frame."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rankline.workflows.schema.ragged import padded_rows
from rankline.workflows.schema.tensor_names import NNZS, VALUES

Arrays = Mapping[str, npt.NDArray[Any]]


class FrameScorer:
    """Scores data frames with encoded ids, lists as one array per row.

    Args:
        names: tensors of the padded layout that the model takes.
        score: tensors by name → output by name, (N, 1) or wider.
    """

    def __init__(self, names: Iterable[str], score: Callable[[Arrays], Mapping[str, npt.NDArray[np.float32]]]) -> None:
        self._columns = list(dict.fromkeys(name.removesuffix(VALUES).removesuffix(NNZS) for name in names))
        self._score = score

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """A column per output: numbers of one that is (N, 1), a list per row of one that is wider."""
        outputs = self._score(padded_rows(frame[self._columns]))
        columns: dict[str, Any] = {
            name: output[:, 0] if output.shape[1] == 1 else list(output) for name, output in outputs.items()
        }
        return pd.DataFrame(columns)
