"""Which columns a request may leave out: those that some rows lack, and that the workflow fills or encodes then."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from serving.parity import out_of_range, plan_inputs, raw_rows, rows_where
from serving.plan import Transform
from workflows.errors import RequestError
from workflows.lists import Padded


def optional_columns(
    plan: Transform, heldout: pa.Table, candidates: Collection[str], not_compared: Collection[str]
) -> tuple[str, ...]:
    """Raw columns that a request may leave out.

    A column that no row lacked stays required, so that one that was forgotten is found.

    Args:
        plan: what is served.
        heldout: raw rows.
        candidates: columns that say how many scores there are.
        not_compared: columns whose missing values could not be compared with NVTabular.
    """
    kept = {*candidates, *not_compared}
    names = [spec.name for spec in plan.inputs if spec.name not in kept and _is_lacking(heldout[spec.name])]
    return tuple(itertools.compress(names, _filled(plan, heldout, names)))


def _is_lacking(column: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(column.type)
    return bool(column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()))


def _filled(plan: Transform, heldout: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """Whether the plan fills in each of some columns where it is missing, so that nothing missing reaches the model."""
    row = raw_rows(plan, heldout, 1)
    same = np.zeros(len(names), np.int64)
    lacking = pa.table({name: row[name].combine_chunks().take(pa.array(same)) for name in row.column_names})
    for number, name in enumerate(names):
        is_there = pa.array(np.arange(len(names)) != number)
        column = pc.if_else(is_there, lacking[name], None)
        lacking = lacking.set_column(lacking.schema.get_field_index(name), name, column)

    def served(rows: pa.Table) -> Mapping[str, NDArray[Any] | Padded] | None:
        try:
            return plan.run(*plan_inputs(plan, rows))
        except RequestError:
            return None

    flags = rows_where(lambda start, end: served(lacking.slice(start, end - start)) is not None, len(names))
    made = served(lacking.filter(pa.array(flags)))
    flags[flags] = ~out_of_range(made) if made else False
    return flags
