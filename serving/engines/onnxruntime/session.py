"""Check an ONNX file, and load it with the same session options inside and outside Triton."""

import mmap
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from rankline.workflows.core.machine import num_cores

_SAY_NOTHING = 4  # errors are also raised
_NUMPY_NAMES = {"float": "float32", "double": "float64"}
_TENSOR = re.compile(r"tensor\((\w+)\)")
_PLACE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (.* Status Message: )?")

_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Message → field number → nested message, for the messages that lead to tensors."""
_OF_MODEL = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14})  # excludes 20, training, and 25, functions
_REPEATED = frozenset({8, 14})  # repeated fields among these
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # fields of a tensor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG_BYTES, _MAX_VARINT_BYTES, _MAX_TAG = 5, 10, 2**32 - 1
_NUMBERS = re.compile(rb"(?:\x3d.{4}|\x40[\x80-\xff]*[\0-\x7f]){1,4096}", re.DOTALL)
"""Floats and integers of an attribute, one field each. Tree ensembles have millions; longer matches need memory."""


def check_file(path: Path) -> None:
    """Raise ValueError if an ONNX file contains anything that Rankline does not write.

    The package onnx is not needed: a server may not have it. Rankline never writes functions, which can expand a small
    file without bound, or weights in external files. All occurrences of a field are checked, since protobuf merges
    them. `serving/native/backends/onnxruntime.cc` implements the same check.
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
                raise ValueError(f"it has the invalid field tag {tag}")
            number, wire = tag >> 3, tag & 7
            value, size = 0, {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
            if wire == _VARINT:
                value, place = _varint(content, place, _MAX_VARINT_BYTES)
            elif wire == _BYTES:
                size, place = _varint(content, place, _MAX_TAG_BYTES)
            elif not size:
                raise ValueError(f"it has a field of unknown wire type {wire}")
            if place + size > end:
                raise ValueError("it is truncated")
            if message == "model" and (number not in _OF_MODEL or number in seen - _REPEATED):
                raise ValueError(f"field {number} of the model is repeated or is never written by Rankline")
            if message == "model":
                seen.add(number)
            if message == "tensor" and (number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value)):
                raise ValueError("its weights are in another file")
            if wire == _BYTES and number in _MESSAGES[message]:
                parts.append((_MESSAGES[message][number], place, place + size))
            place += size


def _varint(content: mmap.mmap, place: int, max_bytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(max_bytes):
        if place + shift >= len(content):
            raise ValueError("it is truncated")
        byte = content[place + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("it contains an integer that is too long")


def open_model(path: Path, *, intra_op_threads: int = 0) -> onnxruntime.InferenceSession:
    """Check a model, and load it into a session that runs its operations sequentially in the calling thread.

    Idle threads sleep. Spinning, ONNX Runtime's default, takes cores from tritonserver and its clients. The default
    number of threads is that of the cores this process may use: ONNX Runtime counts all cores of the machine.
    """
    check_file(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SAY_NOTHING
    options.intra_op_num_threads = intra_op_threads or num_cores()
    for kind in ("intra", "inter"):
        options.add_session_config_entry(f"session.{kind}_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def dtypes_of(tensors: Sequence[Any]) -> dict[str, Any]:
    return {tensor.name: _dtype(tensor.type) for tensor in tensors}


def make_callable(
    session: onnxruntime.InferenceSession, inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Sequence[Any]]:
    names, run = list(outputs), session.run
    return lambda *arrays: run(names, dict(zip(inputs, arrays, strict=True)))


def reason_of(error: Exception) -> str:
    """Return ONNX Runtime's error message in one line, without the position in the graph."""
    return _PLACE.sub("", " ".join(str(error).split()))


def _dtype(word: str) -> Any:
    element = _TENSOR.fullmatch(word)
    try:
        return np.dtype(_NUMPY_NAMES.get(element[1], element[1])) if element else word
    except TypeError:
        return word
