"""Storage of plans as `plan.json` and one memory-mapped Arrow IPC file per array.

The JSON contains the fields of dataclasses in `rankline.workflows.plan`. It refers to the classes by name, which must
be in a fixed table, and contains no code.
"""

import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.plan.columns import Lists, Vector
from rankline.workflows.storage.untrusted import open_regular

_MAGIC_BYTES = 8  # at the start of an Arrow file; the messages after them have the stream format
_HEADER, _COMPRESSION = 2, 3  # field numbers in Arrow's tables Message and RecordBatch
_type_hints = cache(get_type_hints)


class ArrayWriter:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def write(self, array: NDArray[Any] | pa.Array) -> str:
        name = f"array-{self._count}.arrow"
        self._count += 1
        batch = pa.record_batch([array if isinstance(array, pa.Array) else pa.array(array)], names=["array"])
        with pa.OSFile(str(self._directory / name), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return name


def encode(value: Any, writer: ArrayWriter) -> Any:
    """Convert a part of a plan to JSON values, writing its arrays to files."""
    if is_dataclass(value):
        parts = {field.name: encode(getattr(value, field.name), writer) for field in fields(value)}
        return {"kind": type(value).__name__, **parts}
    if isinstance(value, Vector | Lists):
        return {"kind": type(value).__name__, **{n: encode(part, writer) for n, part in value._asdict().items()}}
    if isinstance(value, pa.Array):
        return {"strings_file": writer.write(value)}
    if isinstance(value, np.ndarray):
        # Arrow stores booleans as bits, which NumPy cannot map.
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8 if value.dtype == np.bool_ else value.dtype)
        return {"array_file": writer.write(flat), "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return [encode(part, writer) for part in value]
    return value


def decode(value: Any, kinds: Mapping[str, type], directory: Path) -> Any:
    """Restore a part of a plan from the JSON values returned by `encode`."""
    if isinstance(value, list):
        return tuple(decode(part, kinds, directory) for part in value)
    if not isinstance(value, dict):
        return value
    if "array_file" in value:
        array: NDArray[Any] = _read(directory, value["array_file"]).to_numpy(zero_copy_only=True)
        return array.view(value["dtype"]).reshape(value["shape"])
    if "strings_file" in value:
        return _read(directory, value["strings_file"])
    parts = {name: decode(part, kinds, directory) for name, part in value.items() if name != "kind"}
    kind = kinds[value["kind"]]
    for name, hint in _type_hints(kind).items():
        if name in parts and not _fits(parts[name], hint):
            raise TypeError(f"{name} of {kind.__name__} is {parts[name]!r:.100}, expected {hint}")
    return kind(**parts)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value matches a type hint, as far as the hint can be checked."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and (arguments[-1] is not ... or all(_fits(v, arguments[0]) for v in value))
    if hint in (int, float):  # excludes bool, a subclass of int
        return type(value) is int or type(value) is hint
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def _read(directory: Path, name: str) -> pa.Array:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file in the plan's directory")
    with open_regular(directory / name):  # because memory_map would block on a FIFO
        pass
    with pa.memory_map(str(directory / name)) as source:
        source.seek(_MAGIC_BYTES)
        schema, batch = pa.ipc.read_schema(source), pa.ipc.read_message(source)
        kind = schema.field(0).type
        if not (pa.types.is_primitive(kind) or pa.types.is_large_binary(kind)):
            raise TypeError(f"{name} contains {kind}, expected numbers or large_binary")
        if _is_compressed(batch.metadata):
            raise ValueError(f"{name} is compressed")
        array = pa.ipc.read_record_batch(batch, schema).column(0)
    array.validate(full=True)  # wrong string offsets would refer to memory outside of the file
    return array


def _is_compressed(message: pa.Buffer) -> bool:
    """Whether a record batch is compressed, according to its flatbuffer header, which Arrow has verified."""
    (message_at,) = struct.unpack_from("<I", message)
    batch_at = _field(message, message_at, _HEADER)
    assert batch_at is not None  # every message has a header
    return _field(message, batch_at + struct.unpack_from("<I", message, batch_at)[0], _COMPRESSION) is not None


def _field(message: pa.Buffer, table: int, number: int) -> int | None:
    """Return the offset of a field in a flatbuffer table; None if the field is absent."""
    fields_at = table - struct.unpack_from("<i", message, table)[0]
    num_bytes, place = struct.unpack_from("<H", message, fields_at)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", message, fields_at + place)[0] if place < num_bytes else 0
    return table + offset if offset else None
