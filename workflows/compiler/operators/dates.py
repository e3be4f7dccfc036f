from rankline.workflows.compiler.expressions import Columns, Expression, apply, check_numbers
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.nvt.operators import DateParts
from rankline.workflows.plan.steps import DatePart


def lower_date_parts(op: DateParts, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        lowered |= {f"{name}_{part}": apply(DatePart(part=part), columns[name]) for part in op.parts[name]}
    return lowered
