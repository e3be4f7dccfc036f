"""The plan's C++ runtime, to be compared with the Python one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from rankline.workflows.core.errors import RequestError
from rankline.workflows.native.build import built_objects
from rankline.workflows.plan import TransformPlan, tensor_call
from rankline.workflows.plan.native_library import NativePlan
from rankline.workflows.schema.tensor_names import MISSING_LIST, NNZS, VALUES


def open_native(
    directory: Path, candidates: Sequence[str] = (), max_list_length: int = 0, *, plan: TransformPlan | None = None
) -> NativePlan:
    """A saved plan in C++; one that cannot be loaded is an `ArtifactError`."""
    built_objects()  # which tests of the plan may be the first to need
    return NativePlan(plan or TransformPlan.load(directory), directory, candidates, max_list_length)


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
        return open_native(Path(directory) / "plan", candidates)


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
        made: Any = native(tensors)
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
