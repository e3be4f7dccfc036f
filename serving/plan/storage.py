"""A plan on disk: `plan.json`, and an Arrow IPC file for each array, memory-mapped when read.

The JSON holds the fields of the dataclasses of `serving.plan`, which it may only name from a table. It holds no code.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serving.plan.columns import Lists, Vector


class ArrayWriter:
    """Writes arrays into a directory, each as a file of its own.

    Args:
        directory: existing directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def write(self, array: NDArray[Any] | pa.Array) -> str:
        """Write one array; returns its file name."""
        name = f"array-{self._count}.arrow"
        self._count += 1
        batch = pa.record_batch([array if isinstance(array, pa.Array) else pa.array(array)], names=["array"])
        with pa.OSFile(str(self._directory / name), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return name


def encode(value: Any, writer: ArrayWriter) -> Any:
    """Anything that a plan holds as JSON values, its arrays in files."""
    if is_dataclass(value):
        parts = {field.name: encode(getattr(value, field.name), writer) for field in fields(value)}
        return {"kind": type(value).__name__, **parts}
    if isinstance(value, Vector | Lists):
        return {"kind": type(value).__name__, **{n: encode(part, writer) for n, part in value._asdict().items()}}
    if isinstance(value, pa.Array):
        return {"strings_file": writer.write(value)}
    if isinstance(value, np.ndarray):
        # Arrow packs booleans into bits, which cannot be mapped.
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8 if value.dtype == np.bool_ else value.dtype)
        return {"array_file": writer.write(flat), "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return [encode(part, writer) for part in value]
    return value


def decode(value: Any, kinds: Mapping[str, type], directory: Path) -> Any:
    """What `encode` wrote.

    Args:
        value: JSON values.
        kinds: the classes that may be named.
        directory: where the arrays are.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, OSError, pyarrow.ArrowException: it is not what `encode` wrote.
    """
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
    for name, hint in _hints(kind).items():
        if name in parts and not _fits(parts[name], hint):
            raise TypeError(f"{name} of {kind.__name__} is {parts[name]!r:.100}, expected {hint}")
    return kind(**parts)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as the type says."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and (arguments[-1] is not ... or all(_fits(v, arguments[0]) for v in value))
    if hint in (int, float):  # a bool is neither
        return type(value) is int or type(value) is hint
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def _read(directory: Path, name: str) -> pa.Array:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not the name of a file beside the plan")
    with pa.memory_map(str(directory / name)) as source:
        array = pa.ipc.open_file(source).get_batch(0).column(0)
    array.validate(full=True)  # the ends of strings, which lead into memory of others where they are wrong
    return array
