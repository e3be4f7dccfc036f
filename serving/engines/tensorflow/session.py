"""A SavedModel in a session: one signature as a function of arrays, the way in which it is served.

Imported inside Triton and outside of it. TensorFlow is imported when it is needed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from serving.engines.tensorflow.operations import check_served

INTRA_OP_THREADS = 0
"""Threads that one operation may use, if nothing is said: as many as there are cores."""

INTER_OP_THREADS = -1
"""Threads that run operations side by side, if nothing is said: none, the calling thread runs them all."""


def open_saved_model(
    directory: Path,
    tag: str = "serve",
    *,
    intra_op_threads: int = INTRA_OP_THREADS,
    inter_op_threads: int = INTER_OP_THREADS,
    gpu: str | None = None,
) -> tuple[Any, Mapping[str, Any]]:
    """Load a graph and its variables; memory of a GPU is taken as it is needed.

    Args:
        directory: of the SavedModel.
        tag: of the graph.
        intra_op_threads, inter_op_threads: see the constants.
        gpu: number of the GPU to run on, "" for all of them, or None for none.

    Returns:
        The session, and signature name → `SignatureDef`.

    Raises:
        ArtifactError: it would do more than compute.
        OSError, RuntimeError, ValueError, tf.errors.OpError: it cannot be loaded.
    """
    check_served(directory, tag)
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra_op_threads,
        inter_op_parallelism_threads=inter_op_threads,
        device_count={"GPU": 0} if gpu is None else {},
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=gpu or ""),
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    with session.graph.as_default(), quiet("tensorflow"):  # it advises to load SavedModels without a session
        signatures = tf.compat.v1.saved_model.load(session, [tag], str(directory)).signature_def
    return session, signatures


def dtypes_of(tensors: Mapping[str, Any]) -> dict[str, np.dtype[Any]]:
    """Types of a signature's inputs or outputs, by name."""
    from tensorflow.dtypes import as_dtype

    return {name: np.dtype(as_dtype(tensor.dtype).as_numpy_dtype) for name, tensor in tensors.items()}


def make_callable(
    session: Any, signature: Any, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    """A signature as a function.

    Args:
        session, signature: of `open_saved_model`.
        inputs, outputs: names of tensors, as the signature calls them.

    Returns:
        A function from one array per input to one array per output.
    """
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
