"""A version of `Workflow.fit` for data larger than memory, which reads as little data as possible.

NVTabular's implementation reads all columns for each operator, and transforms a whole partition just to infer dtypes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rankline.workflows.core.errors import DataError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.preprocess.executor import LOCAL, Pool, Report

from merlin.dag import Graph, iter_nodes  # isort: skip
from merlin.dag.ops.stat_operator import StatOperator  # isort: skip


def fit(
    workflow: nvt.Workflow,
    open_columns: Callable[[Sequence[str]], nvt.Dataset],
    example: nvt.Dataset,
    report: Report,
    pool: Pool = LOCAL,
) -> None:
    """Fit a workflow, one operator after another.

    Raises:
        DataError: a column has no values to fit to.
    """
    workflow.fit_schema(example.schema)
    left = Graph.get_nodes_by_op_type([workflow.output_node], StatOperator)
    total = len(left)
    while left:
        before = (Graph.get_nodes_by_op_type(node.parents_with_dependencies, StatOperator) for node in left)
        node = next(node for node, nodes in zip(left, before, strict=True) if not set(left) & set(nodes))
        done = total - len(left)
        statistics = _statistics_of(workflow, node, open_columns(_raw_columns(node)))
        node.op.fit_finalize(pool.compute(statistics, lambda share, done=done: report((done + share) / total)))  # type: ignore[misc]  # bound now
        _check_means(node.op)
        node.op.fitted = True
        left.remove(node)
    workflow.executor.fit(example, workflow.graph, refit=False)


def _check_means(operator: Any) -> None:
    if isinstance(operator, ops.Normalize) and (
        none := [name for name, mean in operator.means.items() if mean != mean]
    ):
        raise DataError(
            f"columns {none} have no mean because all their training values are missing or one is infinite. "
            "Provide more rows, or leave the columns out."
        )


def _statistics_of(workflow: nvt.Workflow, node: Any, rows: nvt.Dataset) -> Any:
    """Return the lazy statistics for fitting a node's operator; see merlin-core's `DaskExecutor.fit_phase`."""
    if node.op.is_subgraph:
        return node.op.fit(node.input_columns, rows)
    made = {name for parent in node.parents_with_dependencies for name in parent.output_columns.names}
    transformed = workflow.executor.transform(
        rows.to_ddf(),
        node.parents_with_dependencies,
        additional_columns=[name for name in node.input_columns.names if name not in made] if node.parents else [],
    )
    return node.op.fit(node.input_columns, transformed)


def _raw_columns(node: Any) -> list[str]:
    roots = [root for root in iter_nodes([node]) if not root.parents_with_dependencies]
    return list(dict.fromkeys(name for root in roots for name in root.input_columns.names))
