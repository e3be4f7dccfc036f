"""Rows in, scores out, over gRPC; names and types come from the server's own description of the model."""

import ipaddress
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import (
    deserialize_bytes_tensor,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from workflows.errors import RequestError, ServerError, ServingError

Array = npt.NDArray[Any]
Columns: TypeAlias = Any  # Mapping[str, list | array] | pa.Table | pandas.DataFrame

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, kw_only=True)
class TensorSchema:
    """An input or output of a model.

    Attributes:
        name: tensor name.
        datatype: Triton's name of the type, such as INT64.
        dims: shape of a row; -1 where any length will do.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type; `object` for BYTES."""
        return np.dtype(triton_to_np_dtype(self.datatype))

    @property
    def is_scalar(self) -> bool:
        """Each row holds one value."""
        return self.dims == (1,)


@dataclass(frozen=True, kw_only=True)
class ModelSchema:
    """What a model takes and gives.

    Attributes:
        name: model name.
        inputs, outputs: in the order of its config.
        max_batch_size: most rows of one request.
    """

    name: str
    inputs: tuple[TensorSchema, ...]
    outputs: tuple[TensorSchema, ...]
    max_batch_size: int


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """Rows that are checked and laid out for the wire.

    Attributes:
        messages: what is sent, one for each `max_batch_size` rows.
        num_rows: rows in all messages.
    """

    messages: tuple[Any, ...]
    num_rows: int


class Client:
    """Scores rows with one model of a Triton server, one request after another.

    Args:
        url: HOST:PORT of the server's gRPC protocol.
        model_name: the ensemble, or any model with a batch dimension and one output.
        timeout_s: longest wait for an answer.

    Raises:
        ServerError: no server answers at `url`.
        RequestError: the server has no such model.
    """

    def __init__(self, url: str, model_name: str, *, timeout_s: float = 30.0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        # gRPC would send even what goes to this machine through the proxy of http_proxy or grpc_proxy.
        options = [*_UNLIMITED, ("grpc.enable_http_proxy", 0)] if _is_loopback(url) else _UNLIMITED
        self._channel = grpc.insecure_channel(url, options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        try:
            self.schema = self._read_schema(model_name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def predict(self, columns: Columns) -> Array:
        """Score rows; more than `max_batch_size` are sent in several requests.

        Args:
            columns: one column per input of the model: an Arrow table, a pandas DataFrame or a mapping from names to
                arrays or lists of equal length.

        Returns:
            [num_rows], or [num_rows, width] when the model's output is wider than one value.

        Raises:
            RequestError: the columns do not fit the model, or it refused them.
            ServerError: the server does not answer.
        """
        return self.infer(self.prepare(columns))

    def prepare(self, columns: Columns) -> PreparedRequest:
        """Check rows against the model and lay them out for the wire.

        Raises:
            RequestError: a column is missing, unknown, of another length, or its values do not fit.
        """
        arrays = self._arrays(_as_mapping(columns))
        num_rows = len(arrays[0])
        step = self.schema.max_batch_size
        starts = range(0, num_rows, step)
        messages = tuple(self._message([array[start : start + step] for array in arrays]) for start in starts)
        return PreparedRequest(messages=messages, num_rows=num_rows)

    def infer(self, request: PreparedRequest) -> Array:
        """Send a prepared request and wait for the scores.

        Returns:
            As `predict`.

        Raises:
            RequestError: the server refused it.
            ServerError: the server does not answer, or its answer does not fit its description of the model.
        """
        responses = [self._call(self._stub.ModelInfer, message) for message in request.messages]
        if not responses:
            return np.empty(0, self.schema.outputs[0].dtype)
        try:
            parts = [self._scores(response) for response in responses]
            scores = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if len(scores) != request.num_rows:
                raise ValueError(f"{len(scores)} rows for {request.num_rows}")
        except (IndexError, ValueError, struct.error) as error:
            raise ServerError(
                f"the answer of model {self.schema.name!r} does not fit its output "
                f"{self.schema.outputs[0].name!r}: {error}. Export the model again."
            ) from error
        return scores

    def _read_schema(self, model_name: str) -> ModelSchema:
        config = self._call(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model_name), model_name).config
        if config.max_batch_size < 1:
            raise RequestError(f"model {model_name!r} takes no batches (max_batch_size 0), expected at least 1.")
        if not config.input or not config.output:
            raise RequestError(f"model {model_name!r} has no inputs or no outputs, expected at least one of each.")
        return ModelSchema(
            name=model_name,
            inputs=tuple(_tensor_schema(entry) for entry in config.input),
            outputs=tuple(_tensor_schema(entry) for entry in config.output),
            max_batch_size=config.max_batch_size,
        )

    def _call(self, method: Any, message: Any, model_name: str = "") -> Any:
        try:
            return method(message, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._translate(error, model_name or self.schema.name) from error

    def _translate(self, error: grpc.RpcError, model_name: str) -> ServingError:
        code, details = error.code(), error.details() or ""
        if code == grpc.StatusCode.UNAVAILABLE and "unknown model" not in details:
            return ServerError(
                f"no Triton server answers at {self._url} ({details}). "
                "Start one with `rankline serve`, or correct the address."
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerError(
                f"{self._url} gave no answer within {self._timeout_s:g} s. Send fewer rows or wait longer."
            )
        if "unknown model" in details:
            return RequestError(f"{self._url} has no model {model_name!r}. Available: {self._model_names()}.")
        return RequestError(f"model {model_name!r} refused the request: {details}")

    def _model_names(self) -> list[str]:
        index = self._call(self._stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(ready=True), "index")
        return sorted(model.name for model in index.models)

    def _arrays(self, columns: Mapping[str, Any]) -> list[Array]:
        names = [tensor.name for tensor in self.schema.inputs]
        if missing := [name for name in names if name not in columns]:
            raise RequestError(
                f"missing {missing} for model {self.schema.name!r}. Expected {names}, got {list(columns)}."
            )
        if unknown := [name for name in columns if name not in names]:
            raise RequestError(f"unknown {unknown} for model {self.schema.name!r}. Expected {names} and nothing else.")
        arrays = [to_tensor(columns[tensor.name], tensor) for tensor in self.schema.inputs]
        if len({len(array) for array in arrays}) > 1:
            lengths = {name: len(array) for name, array in zip(names, arrays, strict=True)}
            raise RequestError(f"columns differ in length: {lengths}. Every column needs one value per row.")
        return arrays

    def _message(self, arrays: Sequence[Array]) -> Any:
        message = service_pb2.ModelInferRequest(model_name=self.schema.name)
        for tensor, array in zip(self.schema.inputs, arrays, strict=True):
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
            is_text = tensor.datatype == "BYTES" and array.size
            message.raw_input_contents.append(serialize_byte_tensor(array).item() if is_text else array.tobytes())
        message.outputs.add(name=self.schema.outputs[0].name)
        return message

    def _scores(self, response: Any) -> Array:
        tensor, content = self.schema.outputs[0], response.raw_output_contents[0]
        values = (
            deserialize_bytes_tensor(content) if tensor.datatype == "BYTES" else np.frombuffer(content, tensor.dtype)
        )
        return values.reshape(-1) if tensor.is_scalar else values.reshape(tuple(response.outputs[0].shape))


def to_tensor(values: Any, tensor: TensorSchema) -> Array:
    """Turn a column into the array that an input takes.

    Integers of any width are taken where no value changes, so are floats without a fraction where integers are taken.
    Floats are rounded to the precision of the input, and refused where they would become infinite.

    Args:
        values: a list, NumPy array, Arrow column or pandas Series. A null becomes NaN where the input takes floats.
        tensor: the input.

    Returns:
        [num_rows, *dims] of the input's type.

    Raises:
        RequestError: another type, a value that the type cannot hold, nulls, or lists of unequal length.
    """
    column, row_shape = _flatten(values, tensor)
    column = _cast(column, tensor)
    if column.null_count and tensor.dtype.kind == "f":
        column = column.fill_null(np.nan)
    if column.null_count:
        raise RequestError(
            f"{tensor.name!r} has {column.null_count} nulls, and {tensor.datatype} cannot hold them. "
            "Fill them or leave these rows out."
        )
    if not row_shape and tensor.is_scalar:
        row_shape = (1,)
    if len(row_shape) != len(tensor.dims) or any(d not in (-1, n) for n, d in zip(row_shape, tensor.dims, strict=True)):
        raise RequestError(f"{tensor.name!r} has rows of shape {list(row_shape)}, expected {list(tensor.dims)}.")
    num_rows = len(column) // math.prod(row_shape) if math.prod(row_shape) else len(values)
    array: Array = column.to_numpy(zero_copy_only=False)
    return array.reshape(num_rows, *row_shape)


def _flatten(values: Any, tensor: TensorSchema) -> tuple[pa.Array, tuple[int, ...]]:
    """All single values of a column, and the shape of its rows; () when each row is a single value."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _to_arrow(values.reshape(-1), tensor), values.shape[1:]
    column = _to_arrow(values, tensor)
    row_shape: tuple[int, ...] = ()
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.min_max(pc.list_value_length(column)).as_py()
        if column.null_count or lengths["min"] != lengths["max"]:
            raise RequestError(
                f"{tensor.name!r} has ragged lists ({lengths['min']} to {lengths['max']} values, "
                f"{column.null_count} nulls), expected lists of one length. Pad them, or send each length on its own."
            )
        row_shape += (lengths["min"] or 0,)
        column = column.flatten()
    return column, row_shape


def _to_arrow(values: Any, tensor: TensorSchema) -> pa.Array:
    if isinstance(values, str | bytes):
        raise RequestError(f"{tensor.name!r} is the single value {values!r}, expected a column: a list or an array.")
    try:
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{tensor.name!r} is no column of {tensor.datatype}: {error}") from None
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _cast(column: pa.Array, tensor: TensorSchema) -> pa.Array:
    is_right_kind = {
        "b": pa.types.is_boolean,
        "O": lambda kind: any(is_text(kind) for is_text in _TEXT),
    }.get(tensor.dtype.kind, lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind))
    if not is_right_kind(column.type) and not pa.types.is_null(column.type):
        raise RequestError(f"{tensor.name!r} has values of type {column.type}, expected {tensor.datatype}.")
    try:
        cast = column.cast(pa.binary() if tensor.datatype == "BYTES" else pa.from_numpy_dtype(tensor.dtype))
    except pa.ArrowException as error:
        raise RequestError(f"{tensor.name!r} does not fit {tensor.datatype}: {error}") from None
    if tensor.dtype.kind == "f" and column.type != cast.type and (overflown := _first_overflow(column, cast)):
        raise RequestError(f"{tensor.name!r} does not fit {tensor.datatype}: {overflown} would become infinite")
    return cast


def _first_overflow(column: pa.Array, cast: pa.Array) -> str:
    """The first finite value that a cast made infinite; empty if there is none."""
    before, after = (array.to_numpy(zero_copy_only=False).astype(np.float64) for array in (column, cast))
    overflown = before[np.isfinite(before) & np.isinf(after)]
    return str(overflown[0]) if overflown.size else ""


def _tensor_schema(entry: Any) -> TensorSchema:
    name = model_config_pb2.DataType.Name(entry.data_type).removeprefix("TYPE_")
    if name in ("BF16", "INVALID"):
        raise RequestError(f"{entry.name!r} is of type {name}, which NumPy does not have. Cast it in the model.")
    return TensorSchema(name=entry.name, datatype="BYTES" if name == "STRING" else name, dims=tuple(entry.dims))


def _as_mapping(columns: Columns) -> Mapping[str, Any]:
    if isinstance(columns, pa.Table):
        return dict(zip(columns.column_names, columns.columns, strict=True))
    try:
        return {str(name): column for name, column in columns.items()}  # a mapping or a pandas DataFrame
    except AttributeError:
        got = type(columns).__name__
        raise RequestError(f"rows are a {got}, expected a mapping from names to columns, or a table.") from None


def _is_loopback(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
