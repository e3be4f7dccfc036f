"""Console output: one progress display for a whole run, messages and tables."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rankline.workflows.core.errors import RanklineError
from rankline.workflows.core.progress import Progress as ProgressSink

CONSOLE = Console(highlight=False)
ERRORS = Console(stderr=True, highlight=False)
_STDOUT = (Path("-"), Path("/dev/stdout"))
SAID_EVERY_S = 15.0
"""Interval between progress lines in a log."""


def is_stdout(path: Path | None) -> bool:
    return path in _STDOUT


def say(text: str) -> None:
    """Print text without interpreting markup."""
    show(CONSOLE, escape(text))


def note(text: str) -> None:
    """Print to standard error, so that standard output holds only results."""
    show(ERRORS, escape(text))


def show(console: Console, text: str, key: str = "", indent: int = 0, *, wrap: bool | None = None) -> None:
    """Print markup, wrapped between words so that paths stay whole and can be copied.

    Args:
        key: text at the beginning of the first line.
        indent: number of columns by which all lines are indented.
        wrap: False for a command, which is to be copied as one line; None wraps on a terminal, but not in a log.
    """
    is_wrapped = console.is_terminal if wrap is None else wrap
    lines = list(_wrapped(Text.from_markup(text), max(console.width - indent, 1) if is_wrapped else None))
    for number, line in enumerate(lines):
        begin = Text.from_markup(key) if number == 0 else Text()
        begin.pad_right(max(indent - begin.cell_len, 0))
        console.print(begin + line, soft_wrap=True)


def _wrapped(text: Text, width: int | None) -> Iterator[Text]:
    for line in text.split(allow_blank=True):
        breaks, begin = [], 0
        for word in re.finditer(r"\S+", line.plain):
            if width and word.start() > begin and cell_len(line.plain[begin : word.end()]) > width:
                begin = word.start()
                breaks.append(begin)
        for part in line.divide(breaks):
            part.rstrip()
            yield part


def warn_busy(busy: str) -> None:
    show(
        ERRORS, f"[bold yellow]Warning:[/] the machine is busy ({busy}): figures will differ from those of an idle one"
    )


def heading(console: Console, text: str) -> None:
    show(console, f"\n[bold]{escape(text)}[/]")


def plain_table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def print_table(console: Console, columns: Mapping[str, Sequence[str]], *, num_keys: int = 1, left: int = 1) -> None:
    """Print a table without truncating cells. Columns that do not fit continue in further tables.

    Further tables omit rows without values. Cells are markup; the first `left` columns are left-aligned.
    """
    widths = {name: _width([escape(name), *cells]) + 2 for name, cells in columns.items()}
    keys = list(columns)[:num_keys]
    room = console.width - sum(widths[name] for name in keys)
    parts: list[list[str]] = [[]]
    for name in list(columns)[num_keys:]:
        if parts[-1] and sum(widths[n] for n in (*parts[-1], name)) > room + 2:  # the last column needs no padding
            parts.append([])
        parts[-1].append(name)
    for number, part in enumerate(parts):
        table = plain_table()
        for name in (*keys, *part):
            table.add_column(
                escape(name), justify="left" if list(columns).index(name) < left else "right", no_wrap=True
            )
        for cells in zip(*(columns[name] for name in (*keys, *part)), strict=True):
            if len(parts) == 1 or any(cells[num_keys:]):
                table.add_row(*cells)
        if number:
            console.print()
        wanted = sum(widths[name] for name in (*keys, *part))
        table.width = wanted if wanted > console.width else None  # let the terminal wrap its lines
        console.print(table, crop=False)


def _width(cells: Iterable[str]) -> int:
    lines = (line for cell in cells for line in cell.split("\n"))
    return max(Text.from_markup(line).cell_len for line in lines)


class Display(Protocol):
    def stage(self, name: str) -> AbstractContextManager[ProgressSink]: ...


class Stages:
    """A display of the stages of a run, one line each, with the progress of the current stage.

    If the output is not a terminal, each stage prints one line when it ends. In addition, it prints its state to
    standard error every `SAID_EVERY_S` seconds, so that a log shows the progress of long training.
    """

    def __init__(self, names: list[str], console: Console = CONSOLE) -> None:
        self._console = console
        self._width = max(map(len, names))
        self._progress = Progress(_Line(self._width), console=console, expand=True)
        self._tasks = {name: self._progress.add_task(name, start=False, total=None, note="") for name in names}

    def __enter__(self) -> "Stages":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator["_Stage"]:
        task = self._tasks[name]
        self._progress.start_task(task)
        begin = time.monotonic()

        def line(console: Console, text: str) -> None:
            seconds = time.monotonic() - begin
            show(console, escape(f"{name:<{self._width}}  {seconds:6.1f} s  {text}"))

        if self._console.is_terminal:
            yield _Stage(self._progress, task)
            self._progress.update(task, total=1, completed=1)
            self._progress.stop_task(task)  # otherwise, its clock keeps running
        else:
            reporter = _Stage(self._progress, task, None if self._console.quiet else partial(line, ERRORS))
            yield reporter
            line(self._console, reporter.note)


class _Line(ProgressColumn):
    """A stage as one line: percentage and time while it runs, time and result when it is done. Long notes wrap."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width, self._spinner = width, Spinner("dots", style="cyan")

    def render(self, task: Task) -> RenderableType:
        name = f"{task.description:<{self._width}}"
        if not task.started:
            return Text(f"  {name}", style="dim")
        mark: RenderableType = Text("✓", style="green") if task.finished else self._spinner.render(task.get_time())
        done = "" if task.finished or task.total is None else f"{task.percentage:3.0f}% "
        line = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(3):
            line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_row(mark, name, f"{task.elapsed or 0:4.0f} s {done}", Text(task.fields["note"]))
        return line


class _Stage(ProgressSink):
    """A progress sink that updates a stage's line and periodically passes the progress to `say`."""

    def __init__(self, progress: Progress, task: TaskID, say: Callable[[str], None] | None = None) -> None:
        self._progress, self._task, self._say = progress, task, say
        self._said_at = time.monotonic()
        self.note = ""

    def update(self, done: float, total: float, note: str = "") -> None:
        self.note = note or self.note
        self._progress.update(self._task, completed=done, total=total, note=self.note)
        if self._say and time.monotonic() - self._said_at >= SAID_EVERY_S:
            self._said_at = time.monotonic()
            self._say(f"{done / total:4.0%}  {self.note}".rstrip() if total else self.note)


def format_error(error: Exception) -> str:
    if isinstance(error, OSError) and os.strerror(errno.ENOSPC) in str(error):  # libraries wrap it in their own ways
        return "the disk is full. Earlier data is unchanged: free some space, then run the command again."
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}. Choose another path, or fix this one."
    if isinstance(error, RanklineError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}"
