"""The plan's C++ runtime in this process, by ctypes, to be compared with the Python one."""

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from serving.native.build import PLAN_LIBRARY, built_objects
from serving.plan import TransformPlan, tensor_call
from workflows.errors import ArtifactError, RequestError
from workflows.tensor_names import MISSING_LIST, NNZS, VALUES

_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "object",
)  # fmt: skip
_ERROR_BYTES = 1000


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32), ("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("data", ctypes.c_void_p),
    )  # fmt: skip


class _String(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_int64))


_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(built_objects() / PLAN_LIBRARY))
    library.rankline_plan_open.restype = ctypes.c_void_p
    library.rankline_plan_open.argtypes = [
        ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    library.rankline_plan_close.argtypes = [ctypes.c_void_p]
    library.rankline_plan_run.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(_Tensor), ctypes.c_size_t, _Allocate, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    return library


class NativePlan:
    """A saved plan.

    Args:
        directory: where `TransformPlan.save` wrote it.
        candidates, max_list_length: as of `tensor_call`.

    Raises:
        ArtifactError: it cannot be loaded.
    """

    def __init__(self, directory: Path, candidates: Sequence[str] = (), max_list_length: int = 0) -> None:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        names = ",".join(candidates).encode()
        self._plan = _library().rankline_plan_open(str(directory).encode(), names, max_list_length, error, _ERROR_BYTES)
        if not self._plan:
            raise ArtifactError(error.value.decode())
        weakref.finalize(self, _library().rankline_plan_close, self._plan)
        plan = TransformPlan.load(directory)
        self._inputs = [
            tensor for spec in plan.inputs for tensor in (*spec.tensors, *([spec.mask] if spec.mask else []))
        ]
        self._outputs = [tensor for column in plan.columns for tensor in column.spec.tensors]

    def run(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs of the tensors of a request.

        Raises:
            RequestError: the request cannot be run.
        """
        kept: list[Any] = []
        given = (_Tensor * len(self._inputs))(*(_plain(t.dtype, tensors.get(t.name), kept) for t in self._inputs))
        made: dict[str, Any] = {}

        @_Allocate
        def allocate(output: int, rows: int, width: int) -> int:
            tensor = self._outputs[output]
            made[tensor.name] = np.empty((rows, width), tensor.numpy_dtype)
            return int(made[tensor.name].ctypes.data)

        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = _library().rankline_plan_run(self._plan, given, len(given), allocate, error, _ERROR_BYTES)
        if status:
            raise (RequestError if status == 1 else RuntimeError)(error.value.decode())
        return made


def _plain(dtype: str, array: Any, kept: list[Any]) -> _Tensor:
    if array is None:
        return _Tensor(_DTYPES.index(dtype), 0, 0, None)
    rows, width = array.shape if array.ndim == 2 else (len(array), 1)
    if dtype == "object":
        texts = [value if isinstance(value, bytes) else value.encode() for value in array.reshape(-1)]
        array = (_String * (len(texts) + 1))(*(_String(text, len(text)) for text in texts))
        kept += [texts, array]
        return _Tensor(_DTYPES.index(dtype), rows, width, ctypes.addressof(array))
    array = np.ascontiguousarray(array) if array.size else np.zeros(1, array.dtype)
    kept.append(array)
    return _Tensor(_DTYPES.index(array.dtype.name), rows, width, array.ctypes.data)


def wire_tensors(plan: TransformPlan, request: pd.DataFrame) -> dict[str, Any]:
    """Rows as the tensors of a request. A string that a list lacks is empty: a request cannot say otherwise."""
    tensors: dict[str, Any] = {}
    for spec in plan.inputs:
        series = request[spec.name]
        if spec.width is not None:
            lists = [None if row is None else [b"" if v is None else v for v in row] for row in series]
            values = np.zeros((len(lists), max([len(row or ()) for row in lists], default=0) or 1), spec.dtype)
            if spec.dtype == "object":
                values[:] = b""
            for number, row in enumerate(lists):
                values[number, : len(row or ())] = [v.encode() if isinstance(v, str) else v for v in row or ()]
            lengths = [MISSING_LIST if row is None else len(row) for row in lists]
            tensors |= {spec.name + VALUES: values, spec.name + NNZS: np.array(lengths, np.int32).reshape(-1, 1)}
            continue
        missing = series.isna().to_numpy()
        if spec.dtype == "object":
            values = np.array([b"" if gone else v.encode() for v, gone in zip(series, missing, strict=True)], object)
        elif spec.mask:
            values = series.fillna(0).to_numpy(spec.dtype)
        else:
            values = series.to_numpy(spec.dtype)
        tensors[spec.name] = values.reshape(-1, 1)
        if spec.mask and missing.any():
            tensors[spec.mask.name] = ~missing.reshape(-1, 1)
    return tensors


def natively(plan: TransformPlan, candidates: Sequence[str] = ()) -> NativePlan:
    """A plan in C++, saved for it."""
    with TemporaryDirectory() as directory:
        plan.save(Path(directory) / "plan")
        return NativePlan(Path(directory) / "plan", candidates)


_opened: dict[int, tuple[TransformPlan, NativePlan]] = {}  # by id of a plan that it keeps


def native_of(plan: TransformPlan) -> NativePlan:
    """As `natively`, once for a plan."""
    if id(plan) not in _opened:
        _opened[id(plan)] = plan, natively(plan)
    return _opened[id(plan)][1]


def assert_native_is_the_same(plan: TransformPlan, tensors: Mapping[str, Any]) -> None:
    """Both runtimes make the same bits of a request, or refuse it with the same words."""
    assert_same_tensors(tensor_call(plan), native_of(plan), tensors)


def assert_same_tensors(reference: Callable[..., Any], native: NativePlan, tensors: Mapping[str, Any]) -> None:
    """As above, of a plan that has been made a function of tensors."""
    try:
        expected = reference(tensors)
    except RequestError as error:
        expected = str(error)
    try:
        made: Any = native.run(tensors)
    except RequestError as error:
        made = str(error)
    if isinstance(expected, str) or isinstance(made, str):
        assert made == expected
        return
    assert set(made) == set(expected)
    for name, array in expected.items():
        assert made[name].shape == array.shape, name
        assert made[name].dtype == array.dtype, name
        nan = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
        assert (np.isnan(made[name]) if array.dtype.kind == "f" else nan).tolist() == nan.tolist(), name
        assert made[name][~nan].tobytes() == array[~nan].tobytes(), (name, made[name], array)
