"""What the ONNX file of a repository may hold, read without the package onnx, which a server need not have.

Rankline writes no functions, which a small file can make grow without bound, and no weights in other files. All
occurrences of a field are looked at, since protobuf merges them. `serving/native/backends/onnxruntime.cc` is the same.
"""

import mmap
import re
from pathlib import Path

_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Message → number of a field → the message in it, for those that lead to tensors."""
_OF_MODEL = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14})  # not 20, training, nor 25, functions
_REPEATED = frozenset({8, 14})  # of those
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG_BYTES, _MAX_VARINT_BYTES, _MAX_TAG = 5, 10, 2**32 - 1
_NUMBERS = re.compile(rb"(?:\x3d.{4}|\x40[\x80-\xff]*[\0-\x7f]){1,4096}", re.DOTALL)
"""Floats and integers of an attribute, a field each: forests have millions. A longer match would take memory."""


def check_file(path: Path) -> None:
    """Check before ONNX Runtime loads it.

    Raises:
        ValueError: it is missing or damaged, or has what Rankline does not write.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _check(content)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error


def _check(content: mmap.mmap) -> None:
    parts, seen = [("model", 0, len(content))], set[int]()
    for message, begin, end in parts:
        place = begin
        while place < end:
            if message == "attribute" and (numbers := _NUMBERS.match(content, place, end)):
                place = numbers.end()
                continue
            tag, place = _varint(content, place, _MAX_TAG_BYTES)
            if tag > _MAX_TAG:
                raise ValueError(f"it has the tag {tag} of a field")
            number, wire = tag >> 3, tag & 7
            value, size = 0, {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
            if wire == _VARINT:
                value, place = _varint(content, place, _MAX_VARINT_BYTES)
            elif wire == _BYTES:
                size, place = _varint(content, place, _MAX_TAG_BYTES)
            elif not size:
                raise ValueError(f"it has a field of the unknown wire type {wire}")
            if place + size > end:
                raise ValueError("it is cut off")
            if message == "model" and (number not in _OF_MODEL or number in seen - _REPEATED):
                raise ValueError(f"it has the field {number} of a model, which is repeated or not written by Rankline")
            if message == "model":
                seen.add(number)
            if message == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value)):
                raise ValueError("it has weights in another file")
            if wire == _BYTES and number in _MESSAGES[message]:
                parts.append((_MESSAGES[message][number], place, place + size))
            place += size


def _varint(content: mmap.mmap, place: int, max_bytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(max_bytes):
        if place + shift >= len(content):
            raise ValueError("it is cut off")
        byte = content[place + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("it has a number that is too long")
