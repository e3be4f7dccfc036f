"""An in-process C++ runtime for plans that is much faster than `rankline.workflows.plan` and returns the same results.

It is used if `librankline_plan.so` is installed or was compiled before; otherwise plans run in Python.
"""

import ctypes
import weakref
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.workflows.core.errors import ArtifactError, RequestError
from rankline.workflows.native.build import find_plan_library
from rankline.workflows.plan import TransformPlan, tensor_call
from rankline.workflows.plan.tensors import Tensors

# In the order of `Dtype` in tensor.h, keyed by NumPy's type numbers.
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "object",
)  # fmt: skip
_CODES = {np.dtype(name).num: code for code, name in enumerate(_DTYPES)}
_TEXT = np.dtype(object).num
_NUM_FIELDS = 5  # fields of a PlainTensor in c_api.cc: dtype, rows, width, data, offsets
_ERROR_BYTES = 1000

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def call_of(
    plan: TransformPlan, directory: Path, candidates: Collection[str] = (), max_list_length: int = 0
) -> Callable[[Tensors], dict[str, NDArray[Any]]]:
    """Return a function that runs a saved plan on request tensors, in C++ if possible; see `tensor_call`.

    Raises:
        ArtifactError: the plan cannot be loaded.
        LoweringError: the plan does not support several candidates.
    """
    in_python = tensor_call(plan, candidates, max_list_length)
    has_halves = any(spec.dtype == "float16" for spec in (*plan.inputs, *(column.spec for column in plan.columns)))
    if has_halves or _library() is None:
        return in_python
    return NativePlan(plan, directory, candidates, max_list_length)


class NativePlan:
    """A thread-safe callable that runs a saved plan in C++; see `call_of` for arguments and errors."""

    def __init__(
        self, plan: TransformPlan, directory: Path, candidates: Collection[str] = (), max_list_length: int = 0
    ) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        names = ",".join(candidates).encode()
        self._plan = self._library.rankline_plan_open(bytes(directory), names, max_list_length, error, _ERROR_BYTES)
        if not self._plan:
            raise ArtifactError(error.value.decode())
        weakref.finalize(self, self._library.rankline_plan_close, self._plan)
        tensors = [tensor for spec in plan.inputs for tensor in (*spec.tensors, *([spec.mask] if spec.mask else []))]
        self._places = {tensor.name: _NUM_FIELDS * number for number, tensor in enumerate(tensors)}
        self._absent = [field for tensor in tensors for field in (_CODES[tensor.numpy_dtype.num], 0, 0, 0, 0)]
        self._outputs = [(t.name, t.numpy_dtype) for column in plan.columns for t in column.spec.tensors]
        self._given_type = ctypes.c_int64 * len(self._absent)

    def __call__(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        given, _kept = self._laid_out(tensors)
        made: dict[str, NDArray[Any]] = {}

        def allocate(output: int, rows: int, width: int) -> int:
            name, dtype = self._outputs[output]
            made[name] = array = np.empty((rows, width), dtype)
            return _address(array)

        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._library.rankline_plan_run(
            self._plan, self._given_type(*given), len(self._places), _Allocate(allocate), error, _ERROR_BYTES
        )
        if status:
            raise (RequestError if status == 1 else RuntimeError)(error.value.decode(errors="replace"))
        return made

    def _laid_out(self, tensors: Tensors) -> tuple[list[int], list[Any]]:
        given, kept = self._absent.copy(), list[Any]()
        texts: list[tuple[int, Any]] = []
        for name, array in tensors.items():
            at = self._places.get(name)
            if at is None:
                continue
            if isinstance(array, pa.Array):
                given[at : at + _NUM_FIELDS] = _CODES[_TEXT], len(array), 1, *_addresses(array)
                kept.append(array)
                continue
            given[at + 1], given[at + 2] = array.shape if array.ndim == 2 else (len(array), 1)
            if array.dtype.num == _TEXT:
                texts.append((at, array.reshape(-1)))
                given[at] = _CODES[_TEXT]
                continue
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
                kept.append(array)
            given[at], given[at + 3] = _CODES[array.dtype.num], _address(array)
        if texts:
            together = _as_arrow([array for _, array in texts])
            kept.append(together)
            data, offsets = _addresses(together)
            for at, array in texts:
                given[at + 3], given[at + 4] = data, offsets
                offsets += 8 * len(array)
        return given, kept


def _as_arrow(arrays: list[NDArray[Any]]) -> pa.LargeBinaryArray:
    try:
        return pa.array(np.concatenate(arrays), pa.large_binary(), from_pandas=True)
    except (pa.ArrowException, TypeError) as error:
        raise RequestError(f"an input contains a non-string value ({error}). Send bytes or str.") from None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]  # faster than array.ctypes.data
    return address


def _addresses(array: pa.LargeBinaryArray) -> tuple[int, int]:
    _, offsets, data = array.buffers()
    return data.address if data else 0, offsets.address + 8 * array.offset


@cache
def _library() -> Any:
    path = find_plan_library()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.rankline_plan_open.restype = ctypes.c_void_p
    library.rankline_plan_open.argtypes = [
        ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    library.rankline_plan_close.argtypes = [ctypes.c_void_p]
    library.rankline_plan_run.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, _Allocate, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    return library
