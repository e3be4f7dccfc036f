"""The ONNX Runtime engine, for tree ensembles in ONNX and models converted from other formats."""

from rankline.serving.engines import Engine
from rankline.workflows.schema.model_artifact import ONNX, SAVED_MODEL, TORCH_SCRIPT

ENGINE = Engine(
    name="onnx",
    package=__name__,
    format=ONNX,
    converts=(SAVED_MODEL, TORCH_SCRIPT),
    platform="onnxruntime_onnx",
    threads_parameter="intra_op_thread_count",
    module="onnxruntime",
    extra="onnx",
    library="capi/libonnxruntime.so.*",
)
