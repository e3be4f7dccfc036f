"""Columns that a request may leave out: columns with missing values that the workflow fills or encodes."""

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.serving.export.parity import out_of_range, plan_inputs, raw_rows, rows_where
from rankline.workflows.core.errors import RequestError
from rankline.workflows.plan import Transform


def optional_columns(
    plan: Transform, heldout: pa.Table, candidates: Collection[str], not_compared: Collection[str]
) -> tuple[str, ...]:
    """Return the raw columns that a request may leave out.

    A column without missing values stays required, so that a forgotten column is an error.

    Args:
        plan: the served transform.
        candidates: columns that determine the number of scores.
        not_compared: columns whose missing values could not be compared with NVTabular.
    """
    kept = {*candidates, *not_compared}
    names = [spec.name for spec in plan.inputs if spec.name not in kept and _is_lacking(heldout[spec.name])]
    return tuple(itertools.compress(names, _filled(plan, heldout, names)))


def _is_lacking(column: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(column.type)
    return bool(column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()))


def _filled(plan: Transform, heldout: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """Flag the columns that the plan fills when they are missing, so that the model never sees a missing value."""
    row = raw_rows(plan, heldout, 1)
    first = pa.array(np.zeros(len(names), np.int64))
    columns = {name: row[name].combine_chunks().take(first) for name in row.column_names}
    for number, name in enumerate(names):
        columns[name] = pc.if_else(pa.array(np.arange(len(names)) != number), columns[name], None)
    lacking, flags = pa.table(columns), np.zeros(len(names), np.bool_)

    def runs(start: int, end: int) -> bool:
        try:
            made = plan.run(*plan_inputs(plan, lacking.slice(start, end - start)))
        except RequestError:
            return False
        flags[start:end] = ~out_of_range(made)
        return True

    rows_where(runs, len(names))
    return flags
