"""Pickles, one instruction after the other: what no honest program would write."""

import pickle
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Name:
    """A class or function, as a value."""

    module: str
    attribute: str


@dataclass(frozen=True)
class Made:
    """The result of a call, filled with `state`; `NEWOBJ` in place of `REDUCE` leaves `__init__` out."""

    name: Name
    arguments: tuple[Any, ...] = ()
    state: Any = None
    how: bytes = pickle.REDUCE


def pickled(value: Any) -> bytes:
    """A pickle of a value, which may hold names and calls."""
    return put(value) + pickle.STOP


def put(value: Any) -> bytes:
    """The instructions that put a value on the stack."""
    match value:
        case Name():
            return put(value.module) + put(value.attribute) + pickle.STACK_GLOBAL
        case Made():
            filled = b"" if value.state is None else put(value.state) + pickle.BUILD
            return put(value.name) + put(value.arguments) + value.how + filled
        case dict():
            items = b"".join(put(key) + put(item) for key, item in value.items())
            return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS
        case list():
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(put, value)) + pickle.APPENDS
        case tuple():
            return pickle.MARK + b"".join(map(put, value)) + pickle.TUPLE
        case str():
            encoded = value.encode()
            return pickle.BINUNICODE8 + len(encoded).to_bytes(8, "little") + encoded
        case bytes():
            return pickle.BINBYTES8 + len(value).to_bytes(8, "little") + value
    return pickle.dumps(value, protocol=3)[2:-1]
