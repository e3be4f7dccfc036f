"""Triton backend `onnxruntime`: runs an ONNX model.

The folder is a Python-based backend: Triton runs this `model.py` for every model whose config says
`backend: "onnxruntime"`, and the model's version directory contains only `model.onnx`. It needs NumPy and ONNX Runtime.
The same directory and config run under Triton's own ONNX Runtime backend. String tensors are rejected, because ONNX
Runtime does not accept the bytes that Triton passes.

Parameter in `config.pbtxt`, named as in Triton's own backend:

    intra_op_thread_count   number of threads that one operation may use; default 0: the number of cores

Measured on the MovieLens MLP with five inputs, one of them a list: one row takes 0.02 ms in a loop, and 0.07 ms in
Triton, where other code has displaced the caches. Buffers that stay bound to the session would save 0.01 ms, but new
buffers per request cost as much, so this backend simply calls `run`.
"""

import triton_python_backend_utils as pb_utils

from rankline.serving.engines.onnxruntime.session import dtypes_of, make_callable, open_model, reason_of
from rankline.serving.python_backends.batching import BatchingModel
from rankline.serving.python_backends.model_arguments import Run, ServedModel, check_tensors, whole_number


class TritonPythonModel(BatchingModel):
    FRAMEWORK = "ONNX Runtime"

    def load(self, model: ServedModel) -> Run:
        path = model.version / "model.onnx"
        if not path.is_file():
            raise pb_utils.TritonModelException(f"{path} does not exist. Export the model again.")
        intra_op_threads = whole_number(model.parameters, "intra_op_thread_count", 0)
        try:
            session = open_model(path, intra_op_threads=intra_op_threads)
        except Exception as error:
            raise pb_utils.TritonModelException(f"{path} cannot be loaded: {self.explain(error)}") from error
        check_tensors(str(path), "inputs", model.inputs, dtypes_of(session.get_inputs()))
        check_tensors(str(path), "outputs", model.outputs, dtypes_of(session.get_outputs()), all_of_them=False)
        names = ([tensor.name for tensor in tensors] for tensors in (model.inputs, model.outputs))
        return make_callable(session, *names)

    def explain(self, error: Exception) -> str:
        return reason_of(error)
