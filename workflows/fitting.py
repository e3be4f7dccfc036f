"""`Workflow.fit` over data that are larger than memory, with as little reading as there can be.

NVTabular's own reads all columns for each operator, and transforms a whole part in the end to see dtypes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask.callbacks import Callback

from workflows.upstream import nvt

from merlin.dag import Graph, iter_nodes  # isort: skip
from merlin.dag.ops.stat_operator import StatOperator  # isort: skip


def fit(
    workflow: nvt.Workflow,
    open_columns: Callable[[Sequence[str]], nvt.Dataset],
    example: nvt.Dataset,
    report: Callable[[float], None],
) -> None:
    """Fit a workflow, one operator after another.

    Args:
        workflow: not fitted yet.
        open_columns: opens some raw columns of all rows.
        example: some rows, all columns; tells dtypes.
        report: told the share of the work that is done.
    """
    workflow.fit_schema(example.schema)
    left = Graph.get_nodes_by_op_type([workflow.output_node], StatOperator)
    total = len(left)
    while left:
        node = next(node for node in left if not set(left) & set(_statistics_before(node)))
        done = total - len(left)
        with _Progress(lambda share, done=done: report((done + share) / total)):  # type: ignore[misc]  # bound now
            workflow.executor.fit_phase(open_columns(_raw_columns(node)), [node])
        left.remove(node)
    workflow.executor.fit(example, workflow.graph, refit=False)


def _statistics_before(node: Any) -> list[Any]:
    """Operators with statistics that a node's input goes through."""
    nodes: list[Any] = Graph.get_nodes_by_op_type(node.parents_with_dependencies, StatOperator)
    return nodes


def _raw_columns(node: Any) -> list[str]:
    """Raw columns that a node's output depends on."""
    roots = [root for root in iter_nodes([node]) if not root.parents_with_dependencies]
    return list(dict.fromkeys(name for root in roots for name in root.input_columns.names))


class _Progress(Callback):
    """Tells the share of dask's tasks that are done."""

    def __init__(self, report: Callable[[float], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def _posttask(self, _key: Any, _result: Any, _dsk: Any, state: Mapping[str, Any], _worker: Any) -> None:
        done = len(state["finished"])
        self._report(done / (done + sum(len(state[name]) for name in ("waiting", "ready", "running"))))
