"""Load a SavedModel into a session, and call one of its signatures with arrays, as in serving.

Imported inside and outside Triton. TensorFlow is imported on first use.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rankline.serving.engines.tensorflow.allowed_operations import check_served


def open_saved_model(directory: Path, *, intra_op_threads: int = 0) -> tuple[Any, Mapping[str, Any]]:
    """Check and load a SavedModel. Return its session and a dict of `SignatureDef` objects keyed by signature name.

    The calling thread runs operations sequentially; 0 threads are one per core.

    Raises:
        ArtifactError: the SavedModel would do more than compute.
        OSError, RuntimeError, ValueError, tf.errors.OpError: the SavedModel cannot be loaded.
    """
    check_served(directory)
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra_op_threads, inter_op_parallelism_threads=-1, device_count={"GPU": 0}
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    with session.graph.as_default(), quiet("tensorflow"):  # TensorFlow advises loading SavedModels without a session
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def
    return session, signatures


def dtypes_of(tensors: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    from tensorflow.dtypes import as_dtype

    return {name: np.dtype(as_dtype(tensor.dtype).as_numpy_dtype) for name, tensor in tensors.items()}


def make_callable(
    session: Any, signature: Any, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    from tensorflow.core.protobuf.config_pb2 import CallableOptions

    run: Callable[..., Sequence[Any]] = session._make_callable_from_options(  # called by Session.run itself
        CallableOptions(
            feed=[signature.inputs[name].name for name in inputs],
            fetch=[signature.outputs[name].name for name in outputs],
        )
    )
    return run


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Silence the named loggers within the block."""
    before = {name: logging.getLogger(name).level for name in loggers}
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
