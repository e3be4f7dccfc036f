"""Utilities that apply fitted workflows in data loaders and prune them to the columns that a model needs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from rankline.workflows.core.errors import ArgumentError, ConfigError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import reject_kfold
from rankline.workflows.nvt.operators.arrow_input import arrow_columns, frame_of
from rankline.workflows.nvt.operators.hashing import with_stable_hashes

from merlin.dag import postorder_iter_nodes  # isort: skip


class OnlineWorkflow:
    """A callable that applies a fitted workflow to tables of raw columns, used for a loader's `map`.

    Args:
        workflow: a fitted workflow. Hashing operators are replaced, because NVTabular includes the row's position in
            the hash; here equal values get equal ids in every row.
        keep: columns, such as labels, to copy from the files if the workflow does not output them.

    Raises:
        ArgumentError: `workflow` is not a workflow.
        ConfigError: `workflow` is not fitted, or it contains hashing without a stable equivalent
            or target encoding with folds.
    """

    def __init__(self, workflow: nvt.Workflow, keep: Sequence[str] = ()) -> None:
        if not isinstance(workflow, nvt.Workflow):
            raise ArgumentError(
                f"map() got a {type(workflow).__name__}, expected a function of a batch or a fitted nvtabular.Workflow."
            )
        if workflow.output_schema is None:
            raise ConfigError("the workflow is not fitted. Call workflow.fit(dataset) first, or load a saved one.")
        reject_kfold(workflow)
        self._workflow = with_stable_hashes(workflow)
        self._reads = list(workflow.input_schema.column_names)
        self._arrow = arrow_columns(workflow)
        self._keep = [name for name in keep if name not in workflow.output_schema.column_names]
        self.columns = tuple(dict.fromkeys([*self._reads, *self._keep]))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the workflow's outputs and the `keep` columns, in the row order of `table`."""
        with quiet_nvtabular():
            made = pa.Table.from_pandas(self._workflow.transform(frame_of(table.select(self._reads), self._arrow)))
        for name in self._keep:
            made = made.append_column(name, table.column(name))
        return made


def prune_workflow(load: Callable[[], nvt.Workflow], columns: Collection[str]) -> nvt.Workflow:
    """Return a workflow reduced to the raw columns that the given outputs depend on.

    A raw column to which an operator was only fitted, such as the column that `JoinGroupby` averages, may remain:
    NVTabular can remove it only together with the columns that depend on the operator. `load` is called once per
    attempt, because NVTabular removes columns in place.
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
    """Return the node inputs that the `wanted` outputs depend on. If an operator such as a join does not declare
    dependencies, return all inputs.
    """
    taken = node.input_columns.names
    with quiet_nvtabular():  # a join reads its table here
        mapping = node.op.column_mapping(node.input_columns)
    found: set[str] = set()
    for name in wanted:
        sources = set(mapping.get(name, ())) & set(taken)
        found |= sources or set(taken)
    return found
