"""ONNX Runtime: runs ONNX, which models of all formats that we train are converted to."""

from serving.engines import Engine
from workflows.trained import SAVED_MODEL, TORCH_SCRIPT

ENGINE = Engine(
    name="onnx",
    package=__name__,
    format="model.onnx",
    converts=(SAVED_MODEL, TORCH_SCRIPT),
    platform="onnxruntime_onnx",
    threads_parameter="intra_op_thread_count",
    module="onnxruntime",
    extra="onnx",
)
