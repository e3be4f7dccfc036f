"""Read pickles as data, without importing or calling anything that they name.

A pickle is a program: it names classes and functions, the arguments to call them with and the state of the resulting
objects. This reader represents each name by a new class that only records what the pickle requests. The result is a
tree of plain values and `PickledObject`s, which `workflows/nvt/io/restore.py` interprets.

The reader extends the pure-Python unpickler, ten times slower than the C one (a second for a million strings). The C
unpickler allocates whatever size four bytes of the file request, and overflows the stack on deeply nested tuples.
"""

import io
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, ClassVar

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.old_names import NEW_NAMES


class PickledObject:
    """An object named in a pickle. A subclass represents the name, and an instance represents a call of that name.

    Attributes:
        module: module of the callable.
        attribute: name of the callable in the module.
        name: both, as MODULE.ATTRIBUTE.
        arguments: arguments of the call.
        state: state to set on the object; None if there is none.
    """

    module: str
    attribute: str
    name: str
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> "PickledObject":
        self = super().__new__(cls)
        self.arguments, self.state = arguments, None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *arguments: Any) -> "PickledObject":
        """Represent a call whose callee is itself the result of a call, as in pickled functions."""
        return _Unnamed(self, *arguments)


class _Unnamed(PickledObject):
    module, attribute, name = "", "", "the result of a call"


def parse_pickle(stream: IO[bytes]) -> Any:
    """Parse a pickle into a tree of built-ins and `PickledObject`s. Names used as values become its subclasses."""
    return _InertUnpickler(stream).load()


def is_name(part: Any) -> bool:
    """Whether a part of the tree is a class or function referenced by name, rather than a call."""
    return type(part) is type and issubclass(part, PickledObject)


# Opcodes that NVTabular's pickles use. Excludes other calls, numbered memos and references to outside of the file.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.LONG4, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.EMPTY_SET),
    *(pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
    pickle.POP,  # drops the result of setting a function's state, in functions saved with their code
)


_CONTAINERS = (
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE, pickle.MARK, pickle.EMPTY_LIST),
    *(pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.REDUCE, pickle.NEWOBJ),
)
# Most containers that one byte of a file can request take about a hundred bytes of memory.
_MIN_CREATED = 2_000_000
_BYTES_PER_CONTAINER, _BYTES_PER_MEMO = 16, 4  # minimum in files that exceed _MIN_CREATED


def _counted(load: Callable[[Any], None]) -> Callable[["_InertUnpickler"], None]:
    def load_counted(unpickler: "_InertUnpickler") -> None:
        unpickler.count_container()
        load(unpickler)

    return load_counted


class _InertUnpickler(pickle._Unpickler):
    memo: dict[int, Any]
    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: IO[bytes]) -> None:
        content = stream.read()
        super().__init__(io.BytesIO(content))  # reading from memory never allocates more than the content
        self._containers_left = max(_MIN_CREATED, len(content) // _BYTES_PER_CONTAINER)
        self._max_memos = max(_MIN_CREATED, len(content) // _BYTES_PER_MEMO)
        self._names: dict[tuple[str, str], type[PickledObject]] = {}

    def find_class(self, module: str, name: str) -> type[PickledObject]:
        module = module.replace("numpy._core.", "numpy.core.")  # NumPy 2 renamed the module
        module = NEW_NAMES.get(module, module)
        if (module, name) not in self._names:
            noted = {"module": module, "attribute": name, "name": f"{module}.{name}"}
            self._names[module, name] = type("Named", (PickledObject,), noted)
        return self._names[module, name]

    def _load_bytearray(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_flat(key)] = value

    def _load_items(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(zip(map(_flat, items[::2]), items[1::2], strict=True))

    def _load_elements(self) -> None:
        elements = self.pop_mark()
        self.stack[-1].update(map(_flat, elements))

    def _load_frozen_elements(self) -> None:
        elements = self.pop_mark()  # must come first: it changes the list that `append` refers to
        self.append(frozenset(map(_flat, elements)))

    def count_container(self) -> None:
        self._containers_left -= 1
        if self._containers_left < 0:
            raise ArtifactError("it builds more objects than a file of its size should")

    def _load_memo(self) -> None:
        if len(self.memo) >= self._max_memos:
            raise ArtifactError("it builds more objects than a file of its size should")
        self.memo[len(self.memo)] = self.stack[-1]

    def _refuse(self) -> None:
        raise ArtifactError("it contains instructions that NVTabular does not write")

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), _refuse),
        **{opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES},
        **{opcode[0]: _counted(pickle._Unpickler.dispatch[opcode[0]]) for opcode in _CONTAINERS},
        pickle.MEMOIZE[0]: _load_memo,
        pickle.BYTEARRAY8[0]: _load_bytearray,
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _load_items,
        pickle.ADDITEMS[0]: _load_elements,
        pickle.FROZENSET[0]: _load_frozen_elements,
    }


def _flat(key: Any) -> Any:
    """Return `key` unchanged. Raise `ArtifactError` if it has nested tuples, whose hashing could recurse too deeply."""
    if isinstance(key, tuple | frozenset) and any(isinstance(part, tuple | frozenset) for part in key):
        raise ArtifactError("it has a nested tuple as a dictionary key")
    return key
