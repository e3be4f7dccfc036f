"""Rows → what is sent: columns checked against the model, cut to what the server takes."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from tritonclient.utils import deserialize_bytes_tensor

from serving.client.schema import ColumnSchema, ModelSchema, TensorSchema
from serving.client.tensors import Array, Dense, Ragged, WireTensor, to_dense, to_ragged
from workflows.errors import RequestError, ServerError

Columns: TypeAlias = Any  # Mapping[str, list | array] | pa.Table | pandas.DataFrame
Encode: TypeAlias = Callable[[ModelSchema, Sequence[WireTensor]], Any]


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """Rows that are checked and laid out for the wire.

    Attributes:
        messages: what is sent, one for each `max_batch_size` rows: `ModelInferRequest`s for gRPC.
        num_rows: rows in all messages.
    """

    messages: tuple[Any, ...]
    num_rows: int


def prepare(
    columns: Columns, schema: ModelSchema, encode: Encode, *, max_message_bytes: int = 1 << 30
) -> PreparedRequest:
    """Check rows against the model and lay them out for the wire.

    Args:
        columns: see `Client.predict`.
        schema: of the model.
        encode: makes a message of tensors.
        max_message_bytes: messages with more are split as far as they have rows; gRPC takes none of 2 GiB.

    Raises:
        RequestError: a column is missing, unknown, of another length, or its values do not fit.
    """
    laid_out = _lay_out(_as_mapping(columns), schema)
    num_rows = laid_out[0].num_rows
    step = schema.max_batch_size
    messages = tuple(
        encode(schema, tensors)
        for start in range(0, num_rows, step)
        for tensors in _parts(laid_out, start, min(start + step, num_rows), max_message_bytes)
    )
    return PreparedRequest(messages=messages, num_rows=num_rows)


def join_scores(answers: Iterable[Array], schema: ModelSchema, num_rows: int) -> Array:
    """Put the answers to a request's messages together.

    Args:
        answers: [rows of the message, ...] of each message; may raise what `decode` does.
        schema: of the model.
        num_rows: of the request.

    Returns:
        [num_rows], or [num_rows, width] where the output is wider than one value.

    Raises:
        ServerError: an answer does not fit the server's description of the model.
    """
    output = schema.outputs[0]
    try:
        parts = [part.reshape(-1) if output.is_scalar else part for part in answers]
        if not parts:
            return np.empty(0, output.dtype)
        scores = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(scores) != num_rows:
            raise ValueError(f"{len(scores)} rows for {num_rows}")
    except (IndexError, ValueError, struct.error) as error:
        raise ServerError(
            f"the answer of model {schema.name!r} does not fit its output {output.name!r}: {error}. "
            "Export the model again."
        ) from error
    return scores


def decode(content: bytes, shape: Sequence[int], tensor: TensorSchema) -> Array:
    """The bytes of an output as an array.

    Raises:
        ValueError, struct.error: they do not fit.
    """
    is_text = tensor.dtype.hasobject
    values: Array = deserialize_bytes_tensor(content) if is_text else np.frombuffer(content, tensor.dtype)
    return values.reshape(tuple(shape))


def _lay_out(given: Mapping[str, Any], schema: ModelSchema) -> list[Dense | Ragged]:
    wanted = _wanted(given, schema)
    names = [column.name for column in schema.columns]
    if missing := [column.name for column in wanted if column.name not in given]:
        raise RequestError(f"missing {missing} for model {schema.name!r}. Expected {names}, got {list(given)}.")
    if unknown := given.keys() - {column.name for column in wanted}:
        raise RequestError(f"unknown {sorted(unknown)} for model {schema.name!r}. Expected {names} and nothing else.")
    laid_out: list[Dense | Ragged] = []
    for column in wanted:
        values = given[column.name]
        laid_out += to_dense(values, column) if column.lengths is None else [to_ragged(values, column)]
    if len({rows.num_rows for rows in laid_out}) > 1:
        lengths = {rows.name: rows.num_rows for rows in laid_out}
        raise RequestError(f"columns differ in length: {lengths}. Every column needs one value per row.")
    return laid_out


def _wanted(given: Mapping[str, Any], schema: ModelSchema) -> list[ColumnSchema]:
    """The columns of a request, where lists and masks may also be given as the tensors that they become."""
    wanted: list[ColumnSchema] = []
    for column in schema.columns:
        tensors = [column.values]
        if column.lengths is not None and column.name not in given and column.values.name in given:
            tensors.append(column.lengths)
        if column.mask is not None and column.mask.name in given:
            tensors.append(column.mask)
        if len(tensors) > 1:
            wanted += [ColumnSchema(name=tensor.name, values=tensor) for tensor in tensors]
        elif column.is_required or column.name in given:
            wanted.append(column)
    return wanted


def _parts(
    laid_out: Sequence[Dense | Ragged], start: int, stop: int, max_message_bytes: int
) -> Iterator[list[WireTensor]]:
    """The tensors of some rows, halved until they go into a message."""
    tensors = [tensor for rows in laid_out for tensor in rows.tensors(start, stop)]
    if stop - start > 1 and sum(tensor.data.nbytes for tensor in tensors) > max_message_bytes:
        middle = (start + stop) // 2
        yield from _parts(laid_out, start, middle, max_message_bytes)
        yield from _parts(laid_out, middle, stop, max_message_bytes)
    else:
        yield tensors


def _as_mapping(columns: Columns) -> Mapping[str, Any]:
    if isinstance(columns, pa.Table):
        return dict(zip(columns.column_names, columns.columns, strict=True))
    try:
        return {str(name): column for name, column in columns.items()}  # a mapping or a pandas DataFrame
    except AttributeError:
        got = type(columns).__name__
        raise RequestError(f"rows are a {got}, expected a mapping from names to columns, or a table.") from None
