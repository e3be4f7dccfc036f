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

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

Array = npt.NDArray[Any]

# TensorFlow keeps the memory of the largest run, so a larger batch waits for a request of that size.
WARM_UP_ROWS = (1, 16, 256, 4096, 16384)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input or output as the model's config declares it; `dims` leaves out the batch."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]

    @classmethod
    def from_config(cls, entry: Mapping[str, Any]) -> "Tensor":
        """Read one entry of `input` or `output`."""
        dtype = np.dtype(pb_utils.triton_string_to_numpy(entry["data_type"]))
        return cls(name=entry["name"], dtype=dtype, dims=tuple(int(dim) for dim in entry["dims"]))


class TritonPythonModel:
    """What Triton's Python backend loads; one object per model instance, in a process of its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the SavedModel and warm it up.

        Args:
            args: from Triton; `model_repository` is the model's own folder.

        Raises:
            TritonModelException: the SavedModel is missing or damaged, or does not fit the config.
        """
        config = json.loads(args["model_config"])
        self._inputs = tuple(Tensor.from_config(entry) for entry in config["input"])
        self._outputs = tuple(Tensor.from_config(entry) for entry in config["output"])
        self._run = load_signature(
            Path(args["model_repository"]) / args["model_version"] / "model.savedmodel",
            self._inputs,
            self._outputs,
            {name: entry["string_value"] for name, entry in config.get("parameters", {}).items()},
            gpus={"CPU": None, "GPU": args["model_instance_device_id"]}.get(args["model_instance_kind"], ""),
        )
        self._warm_up(config["max_batch_size"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests, joined into one run of the signature; a request that cannot be run fails alone."""
        batches = [[self._read(request, tensor.name) for tensor in self._inputs] for request in requests]
        if len(batches) > 1:
            try:
                return self._split(self._run(*(join(arrays) for arrays in zip(*batches, strict=True))), batches)
            except Exception as error:
                pb_utils.Logger.log_verbose(f"{len(batches)} requests could not be joined, each runs alone: {error}")
        return [self._answer(batch) for batch in batches]

    def _answer(self, batch: Sequence[Array]) -> Any:
        try:
            return self._response(self._run(*batch))
        except Exception as error:
            message = f"TensorFlow could not run the request: {_first_line(error)}"
            return pb_utils.InferenceResponse([], pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))

    def _split(self, results: Sequence[Array], batches: Sequence[Sequence[Array]]) -> list[Any]:
        *bounds, num_rows = np.cumsum([len(batch[0]) for batch in batches])
        if any(len(result) != num_rows for result in results):
            raise ValueError(f"outputs have {[len(result) for result in results]} rows for {num_rows} rows of input")
        return [self._response(parts) for parts in zip(*(np.split(result, bounds) for result in results), strict=True)]

    def _response(self, results: Sequence[Array]) -> Any:
        tensors = zip(self._outputs, results, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(tensor.name, result) for tensor, result in tensors])

    @staticmethod
    def _read(request: Any, name: str) -> Array:
        array: Array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        return array

    def _warm_up(self, max_batch_size: int) -> None:
        """Run once per size, so that no request up to the largest pays for optimisation or the first allocation."""
        for num_rows in sorted({min(rows, max(max_batch_size, 1)) for rows in WARM_UP_ROWS}):
            batch = [
                np.full((num_rows, *(max(dim, 1) for dim in tensor.dims)), _fill_value(tensor.dtype), tensor.dtype)
                for tensor in self._inputs
            ]
            try:
                self._run(*batch)
            except Exception as error:  # a model may refuse rows of zeros and yet be sound
                pb_utils.Logger.log_warn(f"warm-up with {num_rows} rows of zeros failed: {error}")
                return


def load_signature(
    directory: Path,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: Mapping[str, str],
    *,
    gpus: str | None,
) -> Callable[..., list[Array]]:
    """Load a SavedModel and make a signature callable with arrays.

    Args:
        directory: the SavedModel.
        inputs: in the order in which the callable takes them.
        outputs: in the order in which the callable returns them.
        parameters: of `config.pbtxt`, see the module.
        gpus: number of the GPU to run on, "" for all of them, or None for none; memory is taken as it is needed.

    Returns:
        A function from one array per input to one array per output.

    Raises:
        TritonModelException: missing, damaged, or it does not fit `inputs` and `outputs`.
    """
    tag = parameters.get("TF_GRAPH_TAG", "serve")
    name = parameters.get("TF_SIGNATURE_DEF", "serving_default")
    if not (directory / "saved_model.pb").is_file():
        raise pb_utils.TritonModelException(f"{directory} holds no SavedModel (no saved_model.pb). Export it again.")
    intra_op_threads = _whole_number(parameters, "INTRA_OP_THREADS", 0)
    inter_op_threads = _whole_number(parameters, "INTER_OP_THREADS", -1)
    tf = _import_tensorflow()
    from tensorflow.core.protobuf.config_pb2 import CallableOptions

    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra_op_threads,
        inter_op_parallelism_threads=inter_op_threads,
        device_count={"GPU": 0} if gpus is None else {},
        gpu_options=tf.compat.v1.GPUOptions(allow_growth=True, visible_device_list=gpus or ""),
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=options)
    try:
        with session.graph.as_default():
            signatures = tf.compat.v1.saved_model.load(session, [tag], str(directory)).signature_def
    except Exception as error:
        reason = _first_line(error)
        raise pb_utils.TritonModelException(f"{directory} cannot be loaded under the tag {tag!r}: {reason}") from error
    if name not in signatures:
        available = sorted(key for key in signatures if not key.startswith("__"))
        raise pb_utils.TritonModelException(f"{directory} has no signature {name!r}. Available: {available}.")
    signature = signatures[name]
    _check(tf, f"signature {name!r} of {directory}", "inputs", inputs, signature.inputs)
    _check(tf, f"signature {name!r} of {directory}", "outputs", outputs, signature.outputs, all_of_them=False)
    call: Callable[..., list[Array]] = session._make_callable_from_options(  # what Session.run itself would call
        CallableOptions(
            feed=[signature.inputs[tensor.name].name for tensor in inputs],
            fetch=[signature.outputs[tensor.name].name for tensor in outputs],
        )
    )
    return call


def join(arrays: Sequence[Array]) -> Array:
    """Concatenate batches of one tensor; rows of 2-D tensors are padded with zeros to the longest.

    Args:
        arrays: [rows of the request, ...] each.

    Returns:
        [rows of all requests, ...]
    """
    if arrays[0].ndim != 2 or len({array.shape[1] for array in arrays}) == 1:
        return np.concatenate(arrays)
    shape = sum(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    joined = np.full(shape, _fill_value(arrays[0].dtype), arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined


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


def _whole_number(parameters: Mapping[str, str], name: str, default: int) -> int:
    value = parameters.get(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise pb_utils.TritonModelException(f"parameter {name} is {value!r}, expected a whole number.") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _fill_value(dtype: np.dtype[Any]) -> Any:
    return b"" if dtype.hasobject else dtype.type(0)
