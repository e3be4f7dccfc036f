"""Lowerings of continuous operators that keep NVTabular's order of operations and dtypes, so results are bit-identical.

There is one difference: a column keeps its dtype. pandas converts a whole batch to float64 if it contains a missing
integer, or if a float32 column is filled or clipped with a number that float32 cannot represent. A served tensor always
has the same dtype.
"""

from typing import Any

import numpy as np

from rankline.workflows.compiler.expressions import Columns, Expression, apply, cast, check_numbers
from rankline.workflows.core.errors import LoweringError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators import DateParts, Finite
from rankline.workflows.plan.steps import Arithmetic, Clip, DatePart, Digitize, Fill, IsMissing
from rankline.workflows.plan.steps import Finite as FiniteStep


def lower_fill_missing(op: ops.FillMissing, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return _filled(op, columns, dict.fromkeys(selector.names, op.fill_val))


def lower_fill_median(op: ops.FillMedian, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return _filled(op, columns, {name: op.medians[name] for name in selector.names})


def _filled(op: Any, columns: Columns, values: dict[str, Any]) -> Columns:
    lowered = dict(columns)
    for name, value in values.items():
        column = columns[name]
        if column.is_list:
            raise LoweringError(
                f"{type(op).__name__} on {name!r}: the column contains lists, expected single values. Use "
                "NullToEmptyList."
            )
        lowered[name] = apply(Fill(value=_fitting(op, name, column, value)), column)
        if op.add_binary_cols:
            lowered[f"{name}_filled"] = apply(IsMissing(), column)
    return lowered


def _fitting(op: Any, name: str, column: Expression, value: Any) -> Any:
    """Return `value` as a Python scalar. Raise if the column's dtype cannot represent it; floats may be rounded."""
    value = _number(value)
    dtype = column.dtype
    if column.is_string == isinstance(value, str):
        if column.is_string or dtype.kind == "f":
            return value
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if float(value).is_integer() and limits[0] <= value <= limits[1]:
            return value
    raise LoweringError(
        f"{type(op).__name__} on {name!r}: cannot fill {'strings' if column.is_string else dtype} with {value!r}. "
        "Fill with a value of the column's type, or convert the column to float64 in the data."
    )


def lower_clip(op: ops.Clip, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        dtype = columns[name].dtype
        lowest, highest = op.min_value, op.max_value
        if dtype.kind in "iu":
            # Bounds outside the dtype's range have no effect and could not be represented.
            lowest = None if lowest is not None and lowest < np.iinfo(dtype).min else lowest
            highest = None if highest is not None and highest > np.iinfo(dtype).max else highest
        bounds = [None if bound is None else _fitting(op, name, columns[name], bound) for bound in (lowest, highest)]
        lowered[name] = apply(Clip(lowest=bounds[0], highest=bounds[1]), columns[name])
    return lowered


def lower_finite(op: Finite, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        lowered[name] = apply(FiniteStep(), columns[name]) if columns[name].dtype.kind == "f" else columns[name]
    return lowered


def lower_log(op: ops.LogOp, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name], lists=True)
        plus_one = apply(Arithmetic(function="add", operand=1), cast(columns[name], op.output_dtype))
        lowered[name] = apply(Arithmetic(function="log"), plus_one)
    return lowered


def lower_normalize(op: ops.Normalize, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Compute (x - mean) / std, or x - mean if std is 0 or unknown."""
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name], lists=True)
        column = apply(Arithmetic(function="subtract", operand=float(op.means[name])), columns[name])
        if op.stds[name] > 0:
            column = apply(Arithmetic(function="divide", operand=float(op.stds[name])), column)
        lowered[name] = cast(column, op.output_dtype)
    return lowered


def lower_normalize_min_max(op: ops.NormalizeMinMax, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Compute (x - min) / (max - min), or x / (2 * x) if max equals min."""
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        column, lowest, extent = columns[name], op.mins[name], op.maxs[name] - op.mins[name]
        if extent > 0:
            column = apply(Arithmetic(function="subtract", operand=_number(lowest)), column)
            column = apply(Arithmetic(function="divide", operand=_number(extent)), column)
        elif extent == 0:
            double = apply(Arithmetic(function="multiply", operand=2), column)
            column = apply(Arithmetic(function="divide"), column, double)
        else:
            raise LoweringError(
                f"NormalizeMinMax on {name!r} was fitted without any values. Fit it on data, or leave it out."
            )
        lowered[name] = cast(column, op.output_dtype)
    return lowered


def lower_bucketize(op: ops.Bucketize, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        boundaries = np.array(op.boundaries(name))
        descending = len(boundaries) > 1 and bool(boundaries[0] > boundaries[-1])
        ascending = boundaries[::-1].copy() if descending else boundaries
        if (np.diff(ascending) < 0).any() or boundaries.dtype.kind not in "iuf":
            raise LoweringError(
                f"Bucketize on {name!r}: boundaries are {boundaries.tolist()}, expected numbers in ascending order."
            )
        lowered[name] = apply(Digitize(boundaries=ascending, descending=descending), columns[name])
    return lowered


def lower_reduce_dtype_size(op: ops.ReduceDtypeSize, _selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Cast each column to the smallest dtype that can hold the values seen when the workflow was fitted."""
    lowered = dict(columns)
    for name, dtype in op.dtypes.items():
        if np.dtype(dtype.to_numpy) != object:
            check_numbers(op, name, columns[name])
            lowered[name] = cast(columns[name], dtype.to_numpy)
    return lowered


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def lower_date_parts(op: DateParts, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        lowered |= {f"{name}_{part}": apply(DatePart(part=part), columns[name]) for part in op.parts[name]}
    return lowered
