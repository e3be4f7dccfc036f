"""Pass raw string columns to operators as Arrow arrays, to avoid creating a Python object per value."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.nvt.operators.categorify import Categorify, HashedCategorify, OrderedCategorify
from rankline.workflows.nvt.operators.cleaning import EmptyToNull, HexToInt
from rankline.workflows.nvt.operators.hashing import HashShare
from rankline.workflows.nvt.operators.values import holds_text

from merlin.dag import iter_nodes  # isort: skip
from merlin.dag.ops.concat_columns import ConcatColumns  # isort: skip


def arrow_columns(workflow: nvt.Workflow) -> list[str]:
    """Return the raw string columns that are read only by operators with Arrow support; see `frame_of`."""
    nodes = list(iter_nodes([workflow.output_node]))
    readers: dict[str, set[type]] = {}
    for node in nodes:
        for parent in node.parents_with_dependencies:
            if parent.selector is not None and not parent.parents_with_dependencies:
                for name in parent.selector.names:
                    readers.setdefault(name, set()).update(_readers(node, nodes))
    return sorted(name for name, kinds in readers.items() if kinds <= _TAKE_ARROW)


def raw_columns(workflow: nvt.Workflow) -> list[str]:
    """Return the raw columns that a graph selects by name. The graph need not be fitted."""
    return sorted(
        {
            name
            for node in iter_nodes([workflow.output_node])
            if node.selector is not None and not node.parents_with_dependencies
            for name in node.selector.names
        }
    )


def _readers(node: Any, nodes: Sequence[Any]) -> set[type]:
    """Return the operator classes that read a node's data, looking past nodes that pass Arrow columns through."""
    if type(node.op) not in _PASS_ON:
        return {type(node.op)}
    behind = [other for other in nodes if any(parent is node for parent in other.parents_with_dependencies)]
    return set().union(*(_readers(other, nodes) for other in behind)) if behind else {type(node.op)}


def frame_of(table: pa.Table, arrow: Sequence[str]) -> pd.DataFrame:
    """Convert a table to pandas, except that string columns listed in `arrow` stay Arrow arrays.

    These columns come last, so that columns of one dtype form one block, which speeds up NVTabular's operators.
    """
    texts = [name for name in arrow if holds_text(table.schema.field(name).type)]
    frame = table.drop_columns(texts).to_pandas()
    made = {name: pd.Series(pd.arrays.ArrowExtensionArray(table[name]), index=frame.index) for name in texts}
    return pd.concat([frame, pd.DataFrame(made, copy=False)], axis=1, copy=False) if texts else frame


_TAKE_ARROW = frozenset({Categorify, HashedCategorify, HashShare, OrderedCategorify})


_PASS_ON = frozenset({ConcatColumns, ops.Rename, EmptyToNull, HexToInt})
