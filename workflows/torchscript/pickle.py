"""Safety checks, without creating any objects, for the pickled attributes of a TorchScript file.

PyTorch reads them with its own unpickler for a subset of pickle's instructions. It does not check a tensor's size,
reads a storage again for each reference, and destroys nested values recursively.
"""

import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.torchscript.code import LIBRARIES, check_type

_MAX_DEPTH = 200
_MAX_CONTAINERS = 1_000_000
_MAX_ELEMENTS = 1 << 28
"""Limit for a tensor that repeats its storage."""
_ITEM_BYTES = {
    **{"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "ComplexDouble": 16, "ComplexFloat": 8},
    **{"Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4},
}
_NAMES = {
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_qtensor"},
    "torch.jit._pickle": {*(f"build_{kind}list" for kind in ("int", "double", "bool", "tensor")), "restore_type_tag"},
    "torch": {"device", "per_tensor_affine", "per_channel_affine", "per_channel_affine_float_qparams"},
    "collections": {"OrderedDict"},
    "builtins": {"complex"},
}
_CLASS = re.compile(r"__torch__(\.\w+)+", re.ASCII)
_LIBRARY = re.compile(r"__torch__\.torch\.classes\.(\w+)\.\w+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class _Storage:
    num_items: int


@dataclass(frozen=True, kw_only=True)
class _Type:
    item_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Name:
    module: str
    name: str


@dataclass(frozen=True, kw_only=True, eq=False)
class _Made:
    argument: Any


def check_pickle(content: bytes, storages: Mapping[str, int]) -> None:
    """Reject a pickle that PyTorch cannot load safely. `storages` has the size in bytes of each tensor record.

    Raises:
        ArtifactError: the pickle does more than compute, contains tensors without data, or is nested too deeply.
        ValueError, IndexError, KeyError, TypeError, EOFError: the pickle is damaged.
    """
    try:
        found = _Unpickler(content, storages).load()
        _height(found, {})
    except RecursionError:
        raise ArtifactError(f"has attributes nested more than {_MAX_DEPTH} levels deep. Simplify them.") from None
    except (pickle.UnpicklingError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its attributes cannot be read ({error})") from None


def _height(value: Any, known: dict[int, int]) -> int:
    if not isinstance(value, list | tuple | dict | _Made):
        return 0
    if id(value) not in known:
        known[id(value)] = _MAX_DEPTH  # during the traversal: a value that contains itself is too deep
        known[id(value)] = 1 + max((_height(part, known) for part in _parts(value)), default=0)
    if known[id(value)] >= _MAX_DEPTH:
        raise RecursionError
    return known[id(value)]


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, _Made):
        yield value.argument
    else:
        yield from value


def _counted(load: Callable[[Any], None]) -> Callable[["_Unpickler"], None]:
    """Decorate an opcode handler to count containers, which take far more memory than the opcodes that create them."""

    def counted(self: "_Unpickler") -> None:
        self.num_containers += 1
        if self.num_containers > _MAX_CONTAINERS:
            raise ArtifactError(f"has attributes with more than {_MAX_CONTAINERS:,} parts. Save a smaller model.")
        load(self)

    return counted


class _Unpickler(pickle._Unpickler):
    """An unpickler that accepts only the opcodes of PyTorch's unpickler and handles the stack in the same way.

    In PyTorch's unpickler, REDUCE and BUILD are the same instruction, and NEWOBJ does nothing.
    """

    stack: list[Any]
    memo: dict[int, Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes, storages: Mapping[str, int]) -> None:
        super().__init__(io.BytesIO(content))
        self._storages, self._used, self.num_containers = storages, set[str](), 0

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name.endswith("Storage") and name.removesuffix("Storage") in _ITEM_BYTES:
            return _Type(item_bytes=_ITEM_BYTES[name.removesuffix("Storage")])
        whole = f"{module}.{name}"
        if name not in _NAMES.get(module, ()):
            library = _LIBRARY.fullmatch(whole)
            if not _CLASS.fullmatch(whole) or (whole.startswith("__torch__.torch.classes") and not library):
                raise ArtifactError(
                    f"contains {whole[:100]!r}, which is not a TorchScript class. Save the model again."
                )
            if library and library[1] not in LIBRARIES:
                raise ArtifactError(f"contains {whole!r}, which may have side effects. Remove it from the model.")
        return _Name(module=module, name=name)

    def persistent_load(self, pid: Any) -> _Storage:
        _, kind, key, _, num_items = pid
        if not isinstance(kind, _Type) or type(num_items) is not int or type(key) is not str or key in self._used:
            raise ArtifactError(f"has storage {key!r} with a duplicate or invalid description. Save the model again.")
        if num_items < 0 or (num_items and num_items * kind.item_bytes > self._storages.get(key, 0)):
            claimed, found = num_items * kind.item_bytes, self._storages.get(key, 0)
            raise ArtifactError(
                f"claims {claimed:,} bytes for storage {key!r}, but has {found:,}. Save the model again."
            )
        self._used.add(key)
        return _Storage(num_items=num_items)

    def _load_new_object(self) -> None:
        if self.stack.pop() != () or not isinstance(self.stack[-1], _Name):
            raise ArtifactError("has an object that is built in an unknown way. Save the model again.")

    def _load_call(self) -> None:
        argument, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name):
            raise ArtifactError("has an object that is built in an unknown way. Save the model again.")
        if function.module == "torch._utils":
            _check_tensor(*argument[:4])
        if function.name == "restore_type_tag":
            check_type(argument[1])
        self.append(_Made(argument=argument))

    def _load_put(self, size: int) -> None:
        place = int.from_bytes(self.read(size), "little")
        if place > len(self.memo):  # PyTorch would allocate memory for the skipped entries
            raise ArtifactError("has gaps in its pickle memo. Save the model again.")
        self.memo[place] = self.stack[-1]

    def _refuse(self) -> None:
        raise ArtifactError(
            "has attributes with pickle instructions that TorchScript does not use. Save the model again."
        )

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), _refuse),
        **{
            opcode[0]: pickle._Unpickler.dispatch[opcode[0]]
            for opcode in (
                *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
                *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE),
                *(pickle.EMPTY_TUPLE, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS),
                *(pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL, pickle.BINPERSID),
            )
        },
        **{
            opcode[0]: _counted(pickle._Unpickler.dispatch[opcode[0]])
            for opcode in (
                *(pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.TUPLE),
                *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
            )
        },
        pickle.NEWOBJ[0]: _load_new_object,
        pickle.REDUCE[0]: _counted(_load_call),
        pickle.BUILD[0]: _counted(_load_call),
        pickle.BINPUT[0]: lambda self: self._load_put(1),
        pickle.LONG_BINPUT[0]: lambda self: self._load_put(4),
    }


def _check_tensor(storage: Any, offset: Any, sizes: Any, strides: Any) -> None:
    numbers = (offset, *sizes, *strides)
    if not isinstance(storage, _Storage) or any(type(number) is not int or number < 0 for number in numbers):
        raise ArtifactError("has a tensor with an invalid description. Save the model again.")
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and last >= storage.num_items:
        raise ArtifactError(
            f"has a tensor reading item {last:,} of {storage.num_items:,} stored items. Save the model again."
        )
    if prod(sizes) > max(_MAX_ELEMENTS, storage.num_items):
        raise ArtifactError(
            f"has a tensor of {prod(sizes):,} items backed by {storage.num_items:,}. Save the model again."
        )
