"""What a person sees: one progress display for a whole run, tables at its end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from workflows.progress import Progress as ProgressSink

CONSOLE = Console(highlight=False)
ERRORS = Console(stderr=True, highlight=False)


class Stages:
    """The stages of a run, one line each, the current one with a bar.

    Where the output is no terminal, each stage prints one line when it ends.

    Args:
        names: the stages in their order.
        console: where to draw.
    """

    def __init__(self, names: list[str], console: Console = CONSOLE) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._tasks = {name: self._progress.add_task(name, start=False, total=None, note="") for name in names}
        self._width = max(map(len, names))

    def __enter__(self) -> "Stages":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator["_Stage"]:
        """Run one stage: its bar starts now and is full when the block ends."""
        task = self._tasks[name]
        self._progress.start_task(task)
        reporter = _Stage(self._progress, task)
        begin = time.monotonic()
        yield reporter
        self._progress.update(task, total=1, completed=1)
        if not self._console.is_terminal:
            seconds = time.monotonic() - begin
            self._console.print(
                f"{name:<{self._width}}  {seconds:6.1f} s  {reporter.note}", soft_wrap=True, markup=False
            )


class _Stage(ProgressSink):
    """Passes a stage's reports to its bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task
        self.note = ""

    def update(self, done: float, total: float, note: str = "") -> None:
        """See `workflows.progress.Progress`."""
        self.note = note or self.note
        self._progress.update(self._task, completed=done, total=total, note=self.note)
