from rankline.workflows.compiler.expressions import Columns, apply, cast, check_numbers
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.nvt.operators import KnownIds
from rankline.workflows.plan.steps import Arithmetic, Clip, Fill


def lower_known_ids(op: KnownIds, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Replace missing, negative and too large ids by 0."""
    lowered = {}
    for name in selector.names:
        check_numbers(op, name, columns[name], lists=True)
        size = op.sizes[name]
        filled = cast(apply(Fill(value=0), columns[name]), "int64")
        within = apply(Clip(lowest=0, highest=size), filled)
        lowered[name] = apply(Arithmetic(function="remainder", operand=size), within)
    return lowered
