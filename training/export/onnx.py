"""ONNX model loading for MLflow."""

from typing import Any

import numpy as np
import onnxruntime

from rankline.training.export.mlflow_frames import Arrays, FrameScorer

_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def _load_pyfunc(data_path: str) -> FrameScorer:
    """Load a logged model. MLflow looks up this function by name in the loader module."""
    session = onnxruntime.InferenceSession(data_path, providers=["CPUExecutionProvider"])
    taken = session.get_inputs()
    names = [tensor.name for tensor in session.get_outputs()]

    def score(arrays: Arrays) -> dict[str, Any]:
        inputs = {tensor.name: arrays[tensor.name].astype(_DTYPES[tensor.type], copy=False) for tensor in taken}
        return dict(zip(names, session.run(names, inputs), strict=True))

    return FrameScorer([tensor.name for tensor in taken], score)
