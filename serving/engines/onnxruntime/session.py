"""Session of an ONNX model, with the same options inside and outside Triton."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from rankline.serving.engines.onnxruntime.file_check import check_file

_SAY_NOTHING = 4  # errors are also raised
_NUMPY_NAMES = {"float": "float32", "double": "float64"}
_TENSOR = re.compile(r"tensor\((\w+)\)")
_PLACE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (.* Status Message: )?")


def open_model(path: Path, *, intra_op_threads: int = 0) -> onnxruntime.InferenceSession:
    """Load a model; the calling thread runs operations sequentially.

    Idle threads sleep. Spinning, ONNX Runtime's default, would take cores from tritonserver and its clients.

    Args:
        intra_op_threads: number of threads that one operation may use; 0 for one per core available to this process,
            since ONNX Runtime counts all cores of the machine and pins its threads to them.

    Raises:
        ValueError: the file has content that Rankline does not write.
        Exception: an ONNX Runtime error; the file is missing or damaged.
    """
    check_file(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SAY_NOTHING
    options.intra_op_num_threads = intra_op_threads or len(os.sched_getaffinity(0))
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def dtypes_of(tensors: Sequence[Any]) -> dict[str, Any]:
    return {tensor.name: _dtype(tensor.type) for tensor in tensors}


def make_callable(
    session: onnxruntime.InferenceSession, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    names, run = list(outputs), session.run
    return lambda *arrays: run(names, dict(zip(inputs, arrays, strict=True)))


def reason_of(error: Exception) -> str:
    """Return ONNX Runtime's error message in one line, without the position in the graph."""
    return _PLACE.sub("", " ".join(str(error).split()))


def _dtype(word: str) -> Any:
    element = _TENSOR.fullmatch(word)
    try:
        return np.dtype(_NUMPY_NAMES.get(element[1], element[1])) if element else word
    except TypeError:
        return word
