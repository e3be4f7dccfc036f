"""UBJSON, the binary form of JSON in which XGBoost saves models; see https://ubjson.org.

XGBoost's own reader is unsafe for damaged files: it may end the process, or read indefinitely.
"""

from typing import Any

import numpy as np

_NUMBERS = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}


def read_ubjson(content: bytes) -> Any:
    """Parse a whole file; arrays of numbers become lists.

    Raises:
        ValueError: the content is damaged.
    """
    reader = _Reader(content)
    try:
        value = reader.value(reader.take(1))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if reader.place != len(content):
        raise ValueError(f"it goes on after its end at byte {reader.place}")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self.place = content, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.place + size > len(self._content):
            raise ValueError(f"it is cut off at byte {len(self._content)}")
        self.place += size
        return self._content[self.place - size : self.place]

    def value(self, mark: bytes) -> Any:
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark in _NUMBERS:
            return self._numbers(mark, 1)[0]
        if mark == b"S":
            return self._text()
        if mark == b"{":
            return self._object()
        if mark == b"[":
            return self._array()
        raise ValueError(f"{mark!r} is of no type, before byte {self.place}")

    def _numbers(self, mark: bytes, count: int) -> list[Any]:
        dtype = np.dtype(_NUMBERS[mark])
        values: list[Any] = np.frombuffer(self.take(dtype.itemsize * count), dtype).tolist()
        return values

    def _count(self) -> int:
        count = self.value(self.take(1))
        if not isinstance(count, int) or isinstance(count, bool):
            raise ValueError(f"a length is {count!r}, before byte {self.place}")
        return count

    def _text(self) -> str:
        return self.take(self._count()).decode()

    def _object(self) -> dict[str, Any]:
        made = {}
        while (mark := self.take(1)) != b"}":
            self.place -= len(mark)
            name = self._text()
            made[name] = self.value(self.take(1))
        return made

    def _array(self) -> list[Any]:
        mark = self.take(1)
        if mark == b"$":
            kind, sign = self.take(1), self.take(1)
            if kind not in _NUMBERS or sign != b"#":
                raise ValueError(f"a list is of type {kind!r}, before byte {self.place}")
            return self._numbers(kind, self._count())
        if mark == b"#":
            return [self.value(self.take(1)) for _ in range(self._count())]
        made = []
        while mark != b"]":
            made.append(self.value(mark))
            mark = self.take(1)
        return made
