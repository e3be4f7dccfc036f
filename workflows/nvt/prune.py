"""The part of a fitted workflow that a model needs: no label, and nothing that is made of columns it does not take."""

from collections.abc import Callable, Collection
from typing import Any

from rankline.workflows.nvt.compat import nvt, quiet_nvtabular

from merlin.dag import postorder_iter_nodes  # isort: skip


def serving_part(load: Callable[[], nvt.Workflow], columns: Collection[str]) -> nvt.Workflow:
    """A workflow without the raw columns that none of the given ones is made of.

    A raw column that an operator was only fitted on, as `JoinGroupby` on what it takes the mean of, may stay: NVTabular
    cannot take it out without the columns that it was fitted for.

    Args:
        load: gives the fitted workflow; called anew for each attempt, since NVTabular takes columns out in place.
        columns: those of its outputs that are needed; further ones that are made of the same raw columns may stay.
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
    """Raw columns that outputs of a fitted workflow are made of."""
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
    """What a node makes columns of; of all that it takes where it does not say, as of columns that it joins."""
    taken = node.input_columns.names
    with quiet_nvtabular():  # a join looks into its table
        mapping = node.op.column_mapping(node.input_columns)
    found: set[str] = set()
    for name in wanted:
        sources = set(mapping.get(name, ())) & set(taken)
        found |= sources or set(taken)
    return found
