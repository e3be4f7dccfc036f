"""A trained model that is ONNX from the start, for MLflow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd

from training.frames import score_frame
from workflows.lists import padded_rows
from workflows.tensor_names import NNZS, VALUES

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def _load_pyfunc(data_path: str) -> "_FrameScorer":
    """What MLflow calls to load a logged model, as its loader modules must."""
    return _FrameScorer(onnxruntime.InferenceSession(data_path, providers=["CPUExecutionProvider"]))


class _FrameScorer:
    """Scores data frames with encoded ids, lists as one array per row; the interface that MLflow asks for."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        taken = self._session.get_inputs()
        columns = dict.fromkeys(tensor.name.removesuffix(VALUES).removesuffix(NNZS) for tensor in taken)
        arrays = padded_rows(frame[list(columns)])
        inputs = {tensor.name: arrays[tensor.name].astype(_DTYPES[tensor.type], copy=False) for tensor in taken}
        names = [tensor.name for tensor in self._session.get_outputs()]
        return score_frame(dict(zip(names, self._session.run(names, inputs), strict=True)))
