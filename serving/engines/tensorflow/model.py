"""Triton backend `tensorflow`: runs one signature of a SavedModel.

The folder is a Python-based backend: Triton runs this `model.py` for every model whose config says
`backend: "tensorflow"`, and the version directory holds only `model.savedmodel`. It needs NumPy and any TensorFlow 2.

Parameters in `config.pbtxt`, the first named as in Triton's own TensorFlow backend:

    TF_SIGNATURE_DEF   signature to run; default "serving_default"
    INTRA_OP_THREADS   number of threads that one operation may use; default 0: the number of cores

The signature runs in a `tf.compat.v1.Session` through a callable that is created once. Measured with TF 2.15 and 2.21
on a small MLP: one row takes 0.04 ms this way, 0.33 ms through `tf.saved_model.load` and 0.20 ms through `Session.run`;
large batches take the same time in all three.
"""

import os
import sys

import triton_python_backend_utils as pb_utils

from rankline.serving.engines.tensorflow.session import dtypes_of, make_callable, open_saved_model
from rankline.serving.python_backends.batching import BatchingModel
from rankline.serving.python_backends.model_arguments import Run, ServedModel, check_tensors, whole_number
from rankline.workflows.core.errors import ArtifactError

# Keras takes a third of the import time, and SavedModels do not need it. TensorFlow, imported when the model is loaded,
# imports Keras eagerly unless it is set to use the package tf_keras and that package is missing.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
sys.modules["tf_keras"] = None  # type: ignore[assignment]  # this process runs only the model
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class TritonPythonModel(BatchingModel):
    FRAMEWORK = "TensorFlow"

    def load(self, model: ServedModel) -> Run:
        directory = model.version / "model.savedmodel"
        name = model.parameters.get("TF_SIGNATURE_DEF", "serving_default")
        if not (directory / "saved_model.pb").is_file():
            raise pb_utils.TritonModelException(
                f"{directory} does not contain a SavedModel (no saved_model.pb). Export the model again."
            )
        intra_op_threads = whole_number(model.parameters, "INTRA_OP_THREADS", 0)
        try:
            session, signatures = open_saved_model(directory, intra_op_threads=intra_op_threads)
        except ArtifactError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        except Exception as error:
            raise pb_utils.TritonModelException(f"{directory} cannot be loaded: {self.explain(error)}") from error
        if name not in signatures:
            available = sorted(key for key in signatures if not key.startswith("__"))
            raise pb_utils.TritonModelException(f"{directory} has no signature {name!r}. Available: {available}.")
        signature = signatures[name]
        described = f"signature {name!r} of {directory}"
        check_tensors(described, "inputs", model.inputs, dtypes_of(signature.inputs))
        check_tensors(described, "outputs", model.outputs, dtypes_of(signature.outputs), all_of_them=False)
        names = ([tensor.name for tensor in tensors] for tensors in (model.inputs, model.outputs))
        return make_callable(session, signature, *names)
