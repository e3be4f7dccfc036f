"""Times: their parts."""

from serving.lowerings.expressions import Columns, Expression, apply, check_numbers
from serving.plan.steps import DatePart
from workflows.datasets.table.operators import DateParts
from workflows.upstream import nvt


def lower_date_parts(op: DateParts, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        check_numbers(op, name, columns[name])
        lowered |= {f"{name}_{part}": apply(DatePart(part=part), columns[name]) for part in op.parts[name]}
    return lowered
