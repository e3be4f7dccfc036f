"""Pickles read as data: what a pickle names is neither imported nor called.

A pickle is a program. It names classes and functions, and says what to call them with and what to put into the objects.
Here each name stands for a class made for the occasion, which only notes what the pickle wants; the result is a tree of
plain values and `Call`s. Who reads the tree decides what becomes of each (`workflows/nvt/io/restore.py`).

The base is Python's unpickler in Python, though ten times slower than the one in C (a second for a million strings):
that one allocates whatever four bytes of a file ask for, and overflows the stack on tuples in tuples.
"""

import io
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, ClassVar

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.old_names import NEW_NAMES


class Call:
    """An object that the pickle asks for. Its class stands for a name, its fields are what was asked.

    Attributes:
        module: of what is called.
        attribute: what is called, in the module.
        name: both, as MODULE.ATTRIBUTE.
        arguments: what it is called with.
        state: what is to be put into the object; None where nothing is.
    """

    module: str
    attribute: str
    name: str
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> "Call":
        self = super().__new__(cls)
        self.arguments, self.state = arguments, None
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *arguments: Any) -> "Call":
        """What is asked for where a result is called in its turn, as in the code of functions; nothing has its name."""
        return _Unnamed(self, *arguments)


class _Unnamed(Call):
    module, attribute, name = "", "", "what a call returns"


def read_inert(stream: IO[bytes]) -> Any:
    """The tree that a pickle holds: plain values, `Call`s, and subclasses of `Call` where it has a name for a value."""
    return _InertUnpickler(stream).load()


def is_name(part: Any) -> bool:
    """Whether a part of the tree is a name as a value."""
    return type(part) is type and issubclass(part, Call)


# What NVTabular's pickles are written with: no other call, no memo by number, nothing from outside of the file.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.LONG4, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.EMPTY_SET),
    *(pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
    pickle.POP,  # of what filling a function returns, in those that are saved with their code
)


_CONTAINERS = (
    *(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE, pickle.MARK, pickle.EMPTY_LIST),
    *(pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.REDUCE, pickle.NEWOBJ),
)
# Most of what one byte of a file may ask for takes a hundred bytes of memory.
_LEAST_MADE = 2_000_000
_BYTES_PER_CONTAINER, _BYTES_PER_MEMO = 16, 4  # in a file that makes more than that, at least


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
        super().__init__(io.BytesIO(content))  # from memory it reads no more than there is
        self._containers_left = max(_LEAST_MADE, len(content) // _BYTES_PER_CONTAINER)
        self._most_memos = max(_LEAST_MADE, len(content) // _BYTES_PER_MEMO)
        self._names: dict[tuple[str, str], type[Call]] = {}

    def find_class(self, module: str, name: str) -> type[Call]:
        module = module.replace("numpy._core.", "numpy.core.")  # the same functions, by their name since NumPy 2
        module = NEW_NAMES.get(module, module)
        if (module, name) not in self._names:
            noted = {"module": module, "attribute": name, "name": f"{module}.{name}"}
            self._names[module, name] = type("Named", (Call,), noted)
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
        elements = self.pop_mark()  # first: it changes where `append` leads
        self.append(frozenset(map(_flat, elements)))

    def count_container(self) -> None:
        self._containers_left -= 1
        if self._containers_left < 0:
            raise ArtifactError("it makes more than its size allows")

    def _load_memo(self) -> None:
        if len(self.memo) >= self._most_memos:
            raise ArtifactError("it makes more than its size allows")
        self.memo[len(self.memo)] = self.stack[-1]

    def _refuse(self) -> None:
        raise ArtifactError("it is written with instructions that NVTabular's pickles have not")

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
    """A key, which is looked at before it is hashed."""
    if isinstance(key, tuple | frozenset) and any(isinstance(part, tuple | frozenset) for part in key):
        raise ArtifactError("it has a key of tuples in tuples")
    return key
