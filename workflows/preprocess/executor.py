"""The interface of encodings, and executors that run their tasks in-process or on a Dask cluster (`dask_cluster`).

Executors run the same tasks and return results in task order, so the output does not depend on the executor.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import dask
from dask.callbacks import Callback

from rankline.workflows.core.machine import num_cores

if TYPE_CHECKING:  # Dask workers without NVTabular import this module, too
    from rankline.workflows.nvt.compat import nvt
    from rankline.workflows.preprocess.partitions import RawSplit
    from rankline.workflows.schema.feature_spec import FeatureSpec

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[float], None]
"""Callback that takes the finished share of some work."""


_NUM_THREADS = min(num_cores(), 8)
"""At most eight, because each holds a partition of rows in memory."""


class Pool(Protocol):
    def map(self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report) -> list[Result]:
        """Run `function` on each task and return the results in task order. The function may report its progress.

        A task may run twice, completely or in part, so it must move its files into place only when they are complete.
        Function and tasks must be picklable.
        """

    def compute(self, collection: Any, report: Report) -> Any:
        """Compute a Dask collection, such as the statistics of a `StatOperator`."""


class _Threads:
    def map(self, function: Callable[[Task, Report], Result], tasks: Sequence[Task], report: Report) -> list[Result]:
        lock, shares = Lock(), [0.0] * len(tasks)

        def run(number: int) -> Result:
            def report_task(share: float) -> None:
                with lock:
                    shares[number] = share
                    report(sum(shares) / len(shares))

            result = function(tasks[number], report_task)
            report_task(1.0)
            return result

        threads = ThreadPoolExecutor(_NUM_THREADS)
        try:
            running = [threads.submit(run, number) for number in range(len(tasks))]
            for task in as_completed(running):
                task.result()  # the first error ends the loop
            return [task.result() for task in running]
        finally:
            threads.shutdown(cancel_futures=True)  # waits for the tasks that are running

    def compute(self, collection: Any, report: Report) -> Any:
        with _Progress(report):
            return dask.compute(collection, scheduler="threads", num_workers=_NUM_THREADS)[0]  # type: ignore[attr-defined, no-untyped-call]


class _Progress(Callback):
    def __init__(self, report: Report) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def _posttask(self, _key: Any, _result: Any, _dsk: Any, state: Mapping[str, Any], _worker: Any) -> None:
        done = len(state["finished"])
        self._report(done / (done + sum(len(state[name]) for name in ("waiting", "ready", "running"))))


LOCAL: Pool = _Threads()
"""Runs the tasks on threads of this process."""


STAGES = ("read", "fitted", "encoded")


@dataclass(frozen=True, kw_only=True)
class PrepareContext:
    """The directories, executor and progress callback of an encoding."""

    directory: Path  # directory of the artifact; contains only complete files
    scratch: Path  # directory for incomplete files and for files that only `prepare` reads
    partition_rows: int  # rows per DataFrame in NVTabular; larger values take more memory
    pool: Pool  # runs the tasks
    report: Callable[[str, float], None]  # called with one of `STAGES` and the share of the stage that is done


class Encoding(Protocol):
    """Interface for encodings, which convert one kind of raw data to encoded splits. Constructors accept a dataset, raw
    data and a config specific to the encoding.

    Attributes:
        num_rows: split → rows; known once the training rows are written.
        dropped: reason → raw rows that the encoding dropped, in addition to those that the reader dropped; known once
            the training rows are written.
    """

    num_rows: Mapping[str, int]
    dropped: Mapping[str, int]

    def write_training_rows(self, workflow: "nvt.Workflow", job: PrepareContext) -> "RawSplit":
        """Write the raw rows to which a workflow is fitted.

        Raises:
            DataError: a row cannot be read, or no rows are left for training or validation.
            ConfigError: an option is not applicable to the data.
        """

    def example(self) -> "nvt.Dataset":
        """Return some raw rows, from which NVTabular infers the dtypes of the workflow's outputs."""

    def write_splits(self, workflow: "nvt.Workflow", job: PrepareContext) -> "FeatureSpec":
        """Encode and write the splits and held-out rows with the fitted workflow, which must be saved in the artifact.

        The returned spec has the metadata that only this encoding knows.

        Raises:
            DataError: a label does not fit its task, or a split does not allow training or evaluation.
            SpecError: the workflow does not output the columns that the encoding needs.
        """
