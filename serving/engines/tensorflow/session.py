"""A SavedModel in a session: one signature as a function of arrays, the way in which it is served.

Imported inside Triton and outside of it. TensorFlow is imported when it is needed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rankline.serving.engines.tensorflow.allowed_operations import check_served


def open_saved_model(directory: Path, *, intra_op_threads: int = 0) -> tuple[Any, Mapping[str, Any]]:
    """Load a graph and its variables.

    Args:
        directory: of the SavedModel.
        intra_op_threads: threads that one operation may use, 0 for as many as there are cores. The calling thread runs
            one operation after the other.

    Returns:
        The session, and signature name → `SignatureDef`.

    Raises:
        ArtifactError: it would do more than compute.
        OSError, RuntimeError, ValueError, tf.errors.OpError: it cannot be loaded.
    """
    check_served(directory)
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra_op_threads, inter_op_parallelism_threads=-1, device_count={"GPU": 0}
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    with session.graph.as_default(), quiet("tensorflow"):  # it advises to load SavedModels without a session
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def
    return session, signatures


def dtypes_of(tensors: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    from tensorflow.dtypes import as_dtype

    return {name: np.dtype(as_dtype(tensor.dtype).as_numpy_dtype) for name, tensor in tensors.items()}


def make_callable(
    session: Any, signature: Any, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    """A signature as a function."""
    from tensorflow.core.protobuf.config_pb2 import CallableOptions

    run: Callable[..., Sequence[Any]] = session._make_callable_from_options(  # what Session.run itself would call
        CallableOptions(
            feed=[signature.inputs[name].name for name in inputs],
            fetch=[signature.outputs[name].name for name in outputs],
        )
    )
    return run


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Let the named loggers say nothing."""
    before = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
