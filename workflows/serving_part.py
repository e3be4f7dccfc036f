"""The part of a fitted workflow that a model needs: no label, and nothing that is made of columns it does not take."""

from collections.abc import Collection
from typing import Any

from workflows.errors import ExportError
from workflows.upstream import nvt, quiet_nvtabular

from merlin.dag import postorder_iter_nodes  # isort: skip


def serving_part(workflow: nvt.Workflow, columns: Collection[str]) -> nvt.Workflow:
    """The workflow without the raw columns that none of the given ones is made of.

    Args:
        workflow: fitted.
        columns: those of its outputs that are needed; further ones that are made of the same raw columns may stay.

    Raises:
        ExportError: NVTabular cannot take the rest out.
    """
    needed = _raw_columns(workflow.output_node, columns)
    unneeded = [name for name in workflow.input_schema.column_names if name not in needed]
    if not unneeded:
        return workflow
    with quiet_nvtabular():
        part = workflow.remove_inputs(unneeded)
    if lost := sorted(set(columns) - set(part.output_schema.column_names)):
        raise ExportError(
            f"the columns {lost} go with the raw columns {unneeded} that nothing else is made of. Save a workflow "
            "without them."
        )
    return part


def _raw_columns(output_node: Any, columns: Collection[str]) -> set[str]:
    """Raw columns that outputs are made of."""
    nodes = list(postorder_iter_nodes(output_node))
    wanted: dict[int, set[str]] = {id(node): set() for node in nodes}
    wanted[id(output_node)] = set(columns)
    raw: set[str] = set()
    for node in reversed(nodes):
        own = _sources(node, wanted[id(node)])
        if not node.parents_with_dependencies:
            raw |= own
        for parent in node.parents_with_dependencies:
            wanted[id(parent)] |= own & set(parent.output_columns.names)
    return raw


def _sources(node: Any, wanted: set[str]) -> set[str]:
    """What a node makes columns of; of all that it takes where it does not say, as of columns that it joins."""
    taken = node.input_columns.names
    mapping = node.op.column_mapping(node.input_columns)
    found: set[str] = set()
    for name in wanted:
        sources = set(mapping.get(name, ())) & set(taken)
        found |= sources or set(taken)
    return found
