"""Operators that only select or describe columns."""

from typing import Any

from rankline.workflows.compiler.expressions import Columns
from rankline.workflows.nvt.compat import nvt, ops


def lower_unchanged(_op: Any, _selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    """Return the columns unchanged: for selections, concatenations, tags and statistics."""
    return columns


def lower_rename(op: ops.Rename, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
    return {new: columns[old] for new, (old,) in op.column_mapping(selector).items()}
