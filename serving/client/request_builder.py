"""Check rows against a model, and encode them as messages within the server's limits."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from tritonclient.utils import deserialize_bytes_tensor

from rankline.serving.client.encoding import Array, Dense, ListRows, WireTensor, to_dense, to_ragged
from rankline.serving.client.schema import ColumnSchema, ModelSchema, check_distinct
from rankline.workflows.core.errors import RequestError, ServerError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.schema.tensors import Tensor

Columns: TypeAlias = Any  # an Arrow, pandas or polars table, or mappings of columns, of one row or of each row
Encode: TypeAlias = Callable[[ModelSchema, Sequence[WireTensor]], Any]
_MAX_NAMES = 50


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """Rows that are checked and encoded for sending.

    Attributes:
        messages: messages to send, one per `max_batch_size` rows; `ModelInferRequest`s for gRPC.
        num_rows: number of rows in all messages; of candidates in a ranking.
        is_ranking: whether each message has the same single row, with some of its candidates.
    """

    messages: tuple[Any, ...]
    num_rows: int
    is_ranking: bool = False


def check(columns: Columns, schema: ModelSchema) -> None:
    """Check rows against a model without a server; see `Client.prepare`."""
    _check_lengths(_lay_out(columns_of(columns, schema), schema))


def prepare(
    columns: Columns, schema: ModelSchema, encode: Encode, *, max_message_bytes: int = 1 << 30
) -> PreparedRequest:
    """Check rows against the model and encode them for sending; see `Client.prepare`.

    Args:
        encode: function that converts tensors to a message.
        max_message_bytes: size above which messages of several rows are split; gRPC rejects messages of 2 GiB.
    """
    laid_out = _lay_out(columns_of(columns, schema), schema)
    _check_lengths(laid_out)
    num_rows = laid_out[0].num_rows
    step = max(schema.max_batch_size // _num_candidates(laid_out), 1)

    def tensors(start: int, stop: int) -> list[WireTensor]:
        return [tensor for rows in laid_out for tensor in rows.tensors(start, stop)]

    messages = tuple(encode(schema, part) for part in _parts(tensors, num_rows, step, max_message_bytes))
    return PreparedRequest(messages=messages, num_rows=num_rows)


def prepare_ranking(
    row: Mapping[str, Any],
    candidates: Any,
    schema: ModelSchema,
    encode: Encode,
    *,
    max_message_bytes: int = 1 << 30,
) -> PreparedRequest:
    """Check one row and its candidates against the model and encode them; see `Client.rank` and `prepare`."""
    shared = {name: [value] for name, value in _row_of(row, schema).items()}
    laid_out = _lay_out(shared | _candidates_of(candidates, schema), schema)
    many = _candidates_among(laid_out)
    _check_lengths(many)
    if _num_candidates(many) != 1:
        raise RequestError(f"candidates contain lists, expected one value per candidate for {list(schema.candidates)}.")
    if not (count := many[0].num_rows):
        raise RequestError("there are no candidates, expected at least one.")
    names = {rows.name for rows in many}
    row_laid_out = [rows for rows in laid_out if rows.name not in names]
    if wrong := [rows.name for rows in row_laid_out if rows.num_rows != 1]:
        raise RequestError(f"the row has several values for {wrong}, expected a single value shared by all candidates.")
    of_row = [tensor for rows in row_laid_out for tensor in rows.tensors(0, 1)]

    def tensors(start: int, stop: int) -> list[WireTensor]:
        parts = (tensor for rows in many for tensor in rows.tensors(start, stop))
        return [*of_row, *(replace(tensor, shape=(1, stop - start)) for tensor in parts)]

    step = min(schema.max_list_length or schema.max_batch_size, schema.max_batch_size)
    messages = tuple(encode(schema, part) for part in _parts(tensors, count, step, max_message_bytes))
    return PreparedRequest(messages=messages, num_rows=count, is_ranking=True)


def join_scores(answers: Iterable[Array], schema: ModelSchema, request: PreparedRequest) -> Array:
    """Concatenate the scores from the responses to a request's messages.

    Args:
        answers: array [num_rows, ...] of each message; iterating may raise the errors of `decode`.

    Returns:
        Scores as in `Client.predict` or `Client.rank`.

    Raises:
        ServerError: a response does not match the server's description of the model.
    """
    output, is_single = schema.outputs[0], len(schema.outputs) == 1
    try:
        parts = [part.reshape(-1) if is_single and _is_flat(part, output, request) else part for part in answers]
        if not parts:
            return np.empty(0 if is_single else (0, sum(each.dims[0] for each in schema.outputs)), output.numpy_dtype)
        scores = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(scores) != request.num_rows:
            raise ValueError(f"received {len(scores)} rows, expected {request.num_rows}")
    except (IndexError, ValueError, struct.error) as error:
        raise ServerError(
            f"the response from model {schema.name!r} does not match the declared output {output.name!r}: {error}. "
            "Export the model again."
        ) from error
    return scores


def _is_flat(part: Array, output: Tensor, request: PreparedRequest) -> bool:
    return output.is_scalar or (output.is_candidates and (request.is_ranking or part.shape[1:] == (1,)))


def decode(content: bytes, shape: Sequence[int], tensor: Tensor) -> Array:
    """Decode the bytes of an output. Raise ValueError or struct.error if they do not match its dtype and shape."""
    is_text = tensor.numpy_dtype.hasobject
    values: Array = deserialize_bytes_tensor(content) if is_text else np.frombuffer(content, tensor.numpy_dtype)
    return values.reshape(tuple(shape))


def _lay_out(given: Mapping[str, Any], schema: ModelSchema) -> list[Dense | ListRows]:
    wanted = _wanted(given, schema)
    names = [column.name for column in schema.columns]
    unknown = sorted(given.keys() - {column.name for column in wanted})
    if missing := [column.name for column in wanted if column.name not in given]:
        hint = did_you_mean(unknown, names)
        raise RequestError(
            f"missing columns {_some(missing)} for model {schema.name!r}. Expected {_some(names)}, got "
            f"{_some(given)}.{hint}"
        )
    if unknown:
        hint = did_you_mean(unknown, names)
        raise RequestError(
            f"unknown columns {_some(unknown)} for model {schema.name!r}. Expected only {_some(names)}.{hint}"
        )
    if not wanted:
        raise RequestError(
            f"the rows have no columns, but model {schema.name!r} expects at least one of {_some(names)}."
        )
    laid_out: list[Dense | ListRows] = []
    for column in wanted:
        values = given[column.name]
        laid_out += to_dense(values, column) if column.lengths is None else [to_ragged(values, column)]
    return laid_out


def _some(names: Iterable[str]) -> str:
    first = list(names)
    return str(first) if len(first) <= _MAX_NAMES else f"{first[:5]} and {len(first) - 5} more"


def _check_lengths(laid_out: Sequence[Dense | ListRows]) -> None:
    if len({rows.num_rows for rows in laid_out}) > 1:
        lengths = {rows.name: rows.num_rows for rows in laid_out}
        raise RequestError(f"columns differ in length: {lengths}. Every column needs one value per row.")


def _candidates_among(laid_out: Sequence[Dense | ListRows]) -> list[Dense]:
    return [rows for rows in laid_out if isinstance(rows, Dense) and rows.schema.is_candidates]


def _num_candidates(laid_out: Sequence[Dense | ListRows]) -> int:
    counts = {rows.name: rows.shape[1] for rows in _candidates_among(laid_out)}
    if len(set(counts.values())) > 1:
        raise RequestError(
            f"columns differ in the number of candidates per row: {counts}. Pass the same number in each column."
        )
    return next(iter(counts.values()), 1)


def _row_of(row: Any, schema: ModelSchema) -> Mapping[str, Any]:
    if not schema.candidates:
        raise RequestError(
            f"model {schema.name!r} accepts only one candidate per row. Call predict with one row per candidate."
        )
    if not isinstance(row, Mapping):
        raise RequestError(f"the row is a {type(row).__name__}, expected a mapping from names to values.")
    if twice := sorted(row.keys() & set(schema.candidates)):
        raise RequestError(f"the row contains {twice}, which belong to the candidates. Remove them from the row.")
    return row


def _candidates_of(candidates: Any, schema: ModelSchema) -> dict[str, Any]:
    if isinstance(candidates, Mapping | pa.Table):
        return dict(columns_of(candidates, schema))
    if len(schema.candidates) > 1:
        got = type(candidates).__name__
        raise RequestError(
            f"candidates have type {got}, expected a mapping with the columns {list(schema.candidates)}."
        )
    return {schema.candidates[0]: candidates}


def _wanted(given: Mapping[str, Any], schema: ModelSchema) -> list[ColumnSchema]:
    """Return the expected columns of a request, with lists and masks as separate tensors if passed that way."""
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
    tensors: Callable[[int, int], list[WireTensor]], count: int, step: int, max_message_bytes: int
) -> Iterator[list[WireTensor]]:
    """Yield the tensors of each message of up to `step` rows, halving a message that exceeds `max_message_bytes`."""

    def halved(start: int, stop: int) -> Iterator[list[WireTensor]]:
        part = tensors(start, stop)
        if stop - start > 1 and sum(tensor.data.nbytes for tensor in part) > max_message_bytes:
            middle = (start + stop) // 2
            yield from halved(start, middle)
            yield from halved(middle, stop)
        else:
            yield part

    for start in range(0, count, step):
        yield from halved(start, min(start + step, count))


def columns_of(rows: Columns, schema: ModelSchema) -> Mapping[str, Any]:
    """Convert rows of any type that `Client.predict` accepts to a mapping from column names to values.

    Args:
        rows: see `Client.predict`.
        schema: schema of the model, which identifies list columns.

    Raises:
        RequestError: the rows have another type, or two columns have the same name.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif hasattr(rows, "to_arrow"):  # polars DataFrame
        rows = rows.to_arrow()
    if isinstance(rows, pa.Table):
        return _by_name(zip(rows.column_names, rows.columns, strict=True))
    if isinstance(rows, list | tuple) and not rows:
        return {column.name: [] for column in schema.columns}
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        return {str(name): [row.get(name) for row in rows] for name in names}
    try:
        columns = _by_name(rows.items())  # a mapping or a pandas DataFrame
    except AttributeError:
        got = type(rows).__name__
        raise RequestError(
            f"rows have type {got}, expected a table, a mapping from names to columns or values, or a list of row "
            "mappings."
        ) from None
    return {name: [value] for name, value in columns.items()} if _is_row(columns, schema) else columns


def _by_name(columns: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    named = [(str(name), column) for name, column in columns]
    check_distinct((name for name, _ in named), "the rows", RequestError)
    return dict(named)


def _is_row(columns: Mapping[str, Any], schema: ModelSchema) -> bool:
    """Whether a mapping is a single row, with a scalar in every column except list columns."""
    lists = {column.name for column in schema.columns if column.lengths is not None}
    several = {
        name for name, value in columns.items() if hasattr(value, "__iter__") and not isinstance(value, str | bytes)
    }
    return several < columns.keys() and several <= lists
