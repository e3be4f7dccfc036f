"""Reduction of fitted workflows to the columns that a model needs, without labels."""

from collections.abc import Callable, Collection
from typing import Any

from rankline.workflows.nvt.compat import nvt, quiet_nvtabular

from merlin.dag import postorder_iter_nodes  # isort: skip


def serving_part(load: Callable[[], nvt.Workflow], columns: Collection[str]) -> nvt.Workflow:
    """Return a workflow without raw columns that the given outputs do not depend on.

    A raw column to which an operator was only fitted, such as the column that `JoinGroupby` averages, may remain:
    NVTabular can remove it only together with the columns that depend on the operator.

    Args:
        load: loads the fitted workflow; called once per attempt, because NVTabular removes columns in place.
        columns: the required outputs; the result may have more outputs that depend on the same raw columns.
    """
    workflow = load()
    needed = raw_columns(workflow, columns)
    removed: list[str] = []
    for name in (name for name in workflow.input_schema.column_names if name not in needed):
        if set(columns) <= set(_without(load(), [*removed, name]).output_schema.column_names):
            removed.append(name)
    return _without(workflow, removed)


def _without(workflow: nvt.Workflow, names: list[str]) -> nvt.Workflow:
    with quiet_nvtabular():
        return workflow.remove_inputs(names) if names else workflow


def raw_columns(workflow: nvt.Workflow, columns: Collection[str]) -> set[str]:
    output_node = workflow.output_node
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
    """Return the inputs that a node's outputs depend on; all of them if the operator does not say, as for joins."""
    taken = node.input_columns.names
    with quiet_nvtabular():  # a join reads its table here
        mapping = node.op.column_mapping(node.input_columns)
    found: set[str] = set()
    for name in wanted:
        sources = set(mapping.get(name, ())) & set(taken)
        found |= sources or set(taken)
    return found
