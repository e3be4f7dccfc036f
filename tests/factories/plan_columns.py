"""Columns of a plan as tests compare them."""

from itertools import pairwise
from typing import Any

from rankline.workflows.plan.columns import Lists, Vector, is_missing, is_string


def listed(column: Any) -> list[Any]:
    """Values as Python has them, None where missing."""
    assert isinstance(column, Vector | Lists)
    if isinstance(column, Lists):
        elements = listed(column.elements)
        rows = [elements[begin:end] for begin, end in pairwise(column.offsets)]
        return [None if lacks else row for row, lacks in zip(rows, is_missing(column), strict=True)]
    values = column.values.to_pylist() if is_string(column) else column.values.tolist()
    return [None if lacks else value for value, lacks in zip(values, is_missing(column), strict=True)]
