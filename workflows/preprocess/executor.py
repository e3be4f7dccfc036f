"""Executors of `prepare`: this process, or the workers of a Dask cluster (see `dask_cluster`).

Both run the same tasks and return results in task order, so the output does not depend on the executor.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import dask
from dask.callbacks import Callback

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[float], None]
"""Callback that takes the finished share of some work."""


class Pool(Protocol):
    def map(self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report) -> list[Result]:
        """Run a function on each task, and return the results in task order.

        A task may run twice, completely or in part, so it must move its files into place only when they are complete.

        Args:
            function: runs one task and may report its progress; must be picklable by name.
            tasks: arguments of `function`; must be picklable.
            report: called with the finished share of all tasks.
        """

    def compute(self, collection: Any, report: Report) -> Any:
        """Compute a Dask collection, such as the statistics of a `StatOperator`."""


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
    def __init__(self, report: Report) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def _posttask(self, _key: Any, _result: Any, _dsk: Any, state: Mapping[str, Any], _worker: Any) -> None:
        done = len(state["finished"])
        self._report(done / (done + sum(len(state[name]) for name in ("waiting", "ready", "running"))))


HERE: Pool = _ThisProcess()
"""Runs the tasks in this process, one after another."""
