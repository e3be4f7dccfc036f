"""Attributes of items, as tables by item; further steps are applied to the tables."""

from rankline.workflows.compiler.expressions import Columns, Expression, apply, column_of, find
from rankline.workflows.nvt.compat import nvt
from rankline.workflows.nvt.operators import ItemAttributes
from rankline.workflows.plan.columns import Vector
from rankline.workflows.plan.steps import Fill


def lower_item_attributes(op: ItemAttributes, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Look up each item once, whatever the number of attributes.

    Raises:
        LoweringError: items are strings and known items are numbers, or vice versa.
    """
    keys = column_of(op.items[op.key])
    assert isinstance(keys, Vector)
    lowered: dict[str, Expression] = {}
    for name in selector.names:
        found = find([columns[name]], [keys], what=f"ItemAttributes on {name!r}")
        for attribute, output in op.outputs(name).items():
            lookup = found.look_up(column_of(op.items[attribute]))
            lowered[output] = apply(Fill(value=op.fill[attribute]), lookup)
    return lowered
