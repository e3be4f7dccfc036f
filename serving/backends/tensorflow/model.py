"""Triton backend `tensorflow`: runs one signature of a SavedModel.

The folder is a Python-based backend: Triton finds `model.py` here for every model whose config says
`backend: "tensorflow"`, and the model's version directory holds nothing but `model.savedmodel`. It needs NumPy and any
TensorFlow 2.

Parameters read from `config.pbtxt`, the first two named as in Triton's own TensorFlow backend:

    TF_GRAPH_TAG       tag of the graph, default "serve"
    TF_SIGNATURE_DEF   signature to run, default "serving_default"
    INTRA_OP_THREADS   threads that one operation may use, default 0: as many as there are cores
    INTER_OP_THREADS   threads that run operations side by side, default -1: none, the calling thread runs them all

The signature runs in a `tf.compat.v1.Session` through a callable made once. Measured with TF 2.15 and 2.21 on a small
MLP: one row takes 0.04 ms this way, 0.33 ms through `tf.saved_model.load` and 0.20 ms through `Session.run`; large
batches take the same time in all three.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.backends.batching import BatchingModel, Run, ServedModel, Tensor, whole_number


class TritonPythonModel(BatchingModel):
    """A SavedModel in Triton."""

    FRAMEWORK = "TensorFlow"

    def load(self, model: ServedModel) -> Run:
        """Load the SavedModel and make a signature callable with arrays; memory of a GPU is taken as it is needed."""
        directory = model.version / "model.savedmodel"
        tag = model.parameters.get("TF_GRAPH_TAG", "serve")
        name = model.parameters.get("TF_SIGNATURE_DEF", "serving_default")
        if not (directory / "saved_model.pb").is_file():
            raise pb_utils.TritonModelException(
                f"{directory} holds no SavedModel (no saved_model.pb). Export it again."
            )
        intra_op_threads = whole_number(model.parameters, "INTRA_OP_THREADS", 0)
        inter_op_threads = whole_number(model.parameters, "INTER_OP_THREADS", -1)
        tf = _import_tensorflow()
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        options = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=intra_op_threads,
            inter_op_parallelism_threads=inter_op_threads,
            device_count={"GPU": 0} if model.gpu is None else {},
            gpu_options=tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=model.gpu or ""),
        )
        session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
        try:
            with session.graph.as_default():
                signatures = tf.compat.v1.saved_model.load(session, [tag], str(directory)).signature_def
        except Exception as error:
            reason = self.explain(error)
            raise pb_utils.TritonModelException(
                f"{directory} cannot be loaded under the tag {tag!r}: {reason}"
            ) from error
        if name not in signatures:
            available = sorted(key for key in signatures if not key.startswith("__"))
            raise pb_utils.TritonModelException(f"{directory} has no signature {name!r}. Available: {available}.")
        signature = signatures[name]
        described = f"signature {name!r} of {directory}"
        _check(tf, described, "inputs", model.inputs, signature.inputs)
        _check(tf, described, "outputs", model.outputs, signature.outputs, all_of_them=False)
        run: Run = session._make_callable_from_options(  # what Session.run itself would call
            CallableOptions(
                feed=[signature.inputs[tensor.name].name for tensor in model.inputs],
                fetch=[signature.outputs[tensor.name].name for tensor in model.outputs],
            )
        )
        return run


def _import_tensorflow() -> Any:
    # Keras takes a third of the import time and a SavedModel does not need it. TensorFlow imports it eagerly unless
    # told to use the separate package tf_keras, which is not there.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf


def _check(
    tf: Any, signature: str, side: str, tensors: Sequence[Tensor], found: Mapping[str, Any], *, all_of_them: bool = True
) -> None:
    """Compare names and dtypes of the config with those of the signature."""
    names = {tensor.name for tensor in tensors}
    if names - set(found) or (all_of_them and set(found) - names):
        raise pb_utils.TritonModelException(
            f"{signature} has the {side} {sorted(found)}, config.pbtxt says {sorted(names)}."
        )
    for tensor in tensors:
        dtype = tf.dtypes.as_dtype(found[tensor.name].dtype).as_numpy_dtype
        if np.dtype(dtype) != tensor.dtype:
            raise pb_utils.TritonModelException(
                f"{signature} has {tensor.name!r} as {np.dtype(dtype)}, config.pbtxt says {tensor.dtype}."
            )
