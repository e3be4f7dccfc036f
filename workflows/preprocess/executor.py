"""Who does the work of `prepare`: this process, or the workers of a Dask cluster
(`rankline.workflows.preprocess.dask_cluster`).

Work is cut into the same tasks for both, and results come back in the order of the tasks. So what is made does not
depend on who makes it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import dask
from dask.callbacks import Callback

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[float], None]
"""Told the share of some work that is done."""


class Pool(Protocol):
    def map(self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report) -> list[Result]:
        """Do each task; the results are in the order of the tasks.

        A task may be done twice, or half and then again: what it writes, it puts in place when it is whole.

        Args:
            function: does one task, and may report how far it is; importable by name, as tasks are sent elsewhere.
            tasks: what it takes; can be pickled.
            report: told the share of all tasks that is done.
        """

    def compute(self, collection: Any, report: Report) -> Any:
        """Compute a Dask collection, such as what a `StatOperator` makes of all rows."""


class _ThisProcess:
    def map(self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report) -> list[Result]:
        results = []
        for number, task in enumerate(tasks):
            results.append(function(task, lambda share, number=number: report((number + share) / len(tasks))))  # type: ignore[misc]  # bound now
            report((number + 1) / len(tasks))
        return results

    def compute(self, collection: Any, report: Report) -> Any:
        with _Progress(report):
            return dask.compute(collection, scheduler="synchronous")[0]  # type: ignore[attr-defined, no-untyped-call]


class _Progress(Callback):
    """Reports the share of dask's tasks that are done."""

    def __init__(self, report: Report) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def _posttask(self, _key: Any, _result: Any, _dsk: Any, state: Mapping[str, Any], _worker: Any) -> None:
        done = len(state["finished"])
        self._report(done / (done + sum(len(state[name]) for name in ("waiting", "ready", "running"))))


HERE: Pool = _ThisProcess()
"""This process does the work, one task after another."""
