"""Which columns a request may leave out: those that some rows lack, and that the workflow fills or encodes then."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from serving.parity import out_of_range, plan_inputs, raw_rows
from serving.plan import Transform
from workflows.errors import RequestError


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
    return tuple(
        spec.name
        for spec in plan.inputs
        if spec.name not in kept and _is_lacking(heldout[spec.name]) and _fills(plan, heldout, spec.name)
    )


def _is_lacking(column: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(column.type)
    return bool(column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()))


def _fills(plan: Transform, heldout: pa.Table, name: str) -> bool:
    """Whether the plan fills in the column where it is missing, so that nothing missing reaches the model."""
    row = raw_rows(plan, heldout, 1)
    at = row.schema.get_field_index(name)
    try:
        made = plan.run(*plan_inputs(plan, row.set_column(at, row.schema.field(at), pa.nulls(1, row.schema.types[at]))))
    except RequestError:
        return False
    return not out_of_range(made).any()
