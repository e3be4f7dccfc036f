"""An ONNX model in a session of ONNX Runtime, the way in which it is served; inside Triton and outside of it."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from rankline.serving.engines.onnxruntime.file_check import check_file

_SAY_NOTHING = 4  # what is wrong is raised, too
_NUMPY_NAMES = {"float": "float32", "double": "float64"}
_TENSOR = re.compile(r"tensor\((\w+)\)")
_PLACE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (.* Status Message: )?")


def open_model(path: Path, *, intra_op_threads: int = 0) -> onnxruntime.InferenceSession:
    """Load a model; the calling thread runs one operation after the other.

    Threads that wait sleep. Spinning, which is ONNX Runtime's default, takes the cores from tritonserver and its
    clients.

    Args:
        path: ONNX file.
        intra_op_threads: threads that one operation may use, 0 for one per core that this process may use: ONNX Runtime
            counts the cores of the machine, and pins its threads to them.

    Raises:
        ValueError: the file has what Rankline does not write.
        Exception: of ONNX Runtime; the file is missing or damaged.
    """
    check_file(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SAY_NOTHING
    options.intra_op_num_threads = intra_op_threads or len(os.sched_getaffinity(0))
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def dtypes_of(tensors: Sequence[Any]) -> dict[str, Any]:
    """Types of a session's inputs or outputs, by name."""
    return {tensor.name: _dtype(tensor.type) for tensor in tensors}


def make_callable(
    session: onnxruntime.InferenceSession, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    """A model as a function."""
    names, run = list(outputs), session.run
    return lambda *arrays: run(names, dict(zip(inputs, arrays, strict=True)))


def reason_of(error: Exception) -> str:
    """What ONNX Runtime says is wrong, in one line and without where in the graph."""
    return _PLACE.sub("", " ".join(str(error).split()))


def _dtype(word: str) -> Any:
    element = _TENSOR.fullmatch(word)
    try:
        return np.dtype(_NUMPY_NAMES.get(element[1], element[1])) if element else word
    except TypeError:
        return word
