"""Operators that only name columns or describe them, and those that no request can go through."""

from typing import Any

from rankline.workflows.compiler.expressions import Columns
from rankline.workflows.nvt.compat import nvt, ops


def lower_unchanged(_op: Any, _selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Selections, concatenations, tags and statistics leave the values alone."""
    return columns


def lower_rename(op: ops.Rename, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return {new: columns[old] for new, (old,) in op.column_mapping(selector).items()}
