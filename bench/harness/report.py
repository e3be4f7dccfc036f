"""Benchmark reports as tables and JSON: metrics of each side, ratios between sides with targets, the environment."""

import gc
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape

from bench.harness.targets import Bound
from rankline.terminal.console import heading, print_table
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.machine import cpu_name
from rankline.workflows.storage.artifacts import versions


def figures_of(name: str, recipe: str | None = None, own: str | None = None) -> str:
    """Return the name of a report: the benchmark's name, with the recipe if it is not the benchmark's default."""
    return name if recipe in (None, own) else f"{name}-{recipe}"


FIGURES = Path("docs") / "figures"
"""Directory of the project's latest benchmark reports, in one folder per group of benchmarks."""
Turn = Callable[[], float]
Rates = Mapping[str, Sequence[float]]
"""Mapping from side to the result of each of its turns."""


def figures_file(name: str, root: Path = Path()) -> Path:
    """Return the path of a report, such as docs/figures/serving/serving-movielens-next.json."""
    return next((root / FIGURES).rglob(f"{name}.json"), FIGURES / f"{name}.json")


def take_turns(sides: Mapping[str, Turn], repeats: int) -> Rates:
    """Run each side in turn, `repeats` times, after one discarded turn, which imports, compiles and fills caches."""
    for turn in sides.values():
        turn()
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, turn in sides.items():
            gc.collect()  # leftovers of the previous side may hold threads
            rates[side].append(turn())
    return rates


def median_ratio(rates: Rates, one: str, other: str) -> float:
    """Return the median over the turns of `one` divided by `other`; pairing turns cancels changes of machine speed.

    It is NaN if every turn has a NaN.
    """
    return _median([a / b for a, b in zip(rates[one], rates[other], strict=True)])


def medians(rates: Rates, figure: str) -> dict[str, dict[str, float]]:
    return {side: {figure: statistics.median(values)} for side, values in rates.items()}


def medians_of(turns: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Return the median of each metric of each side, given the results of all turns.

    NaN stands for a metric that a turn was too short to measure; a metric that no turn measured is left out.
    """
    return {
        side: {name: value for name, values in figures.items() if not math.isnan(value := _median(values))}
        for side, figures in turns.items()
    }


def _median(values: Iterable[float]) -> float:
    measured = [value for value in values if not math.isnan(value)]
    return statistics.median(measured) if measured else math.nan


def p50_ms(ask: Callable[[], object], num_calls: int, num_warmup: int = 0) -> float:
    """Return the median latency of sequential calls in milliseconds, excluding the first `num_warmup` calls."""
    latencies_ns = []
    for _ in range(num_warmup + num_calls):
        begin = time.perf_counter_ns()
        ask()
        latencies_ns.append(time.perf_counter_ns() - begin)
    return statistics.median(latencies_ns[num_warmup:]) / 1e6


@contextmanager
def scratch_directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="rankline-bench-") as name:
        yield Path(name)


@dataclass(frozen=True, kw_only=True)
class Report:
    name: str
    results: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, float]
    environment: Mapping[str, Any] = field(default_factory=lambda: environment())
    left_out: Mapping[str, str] = field(default_factory=dict)  # side to why it was not measured

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "results": {side: dict(figures) for side, figures in self.results.items()},
            "ratios": dict(self.ratios),
            "environment": dict(self.environment),
            "left_out": dict(self.left_out),
        }

    @classmethod
    def load(cls, path: Path) -> "Report":
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a benchmark report: {error}.") from None

    def table(self) -> dict[str, list[str]]:
        """Return columns of text, with names in the first; sides are the rows or the columns, whichever is narrower."""
        figures = list(dict.fromkeys(name for side in self.results.values() for name in side))
        cells = {(side, name): value for side, values in self.results.items() for name, value in values.items()}
        rows, columns = list(self.results), figures
        if len(columns) > len(rows):
            rows, columns = figures, list(self.results)
            cells = {(figure, side): value for (side, figure), value in cells.items()}
        return {"": rows, **{column: [shown(cells.get((row, column))) for row in rows] for column in columns}}

    def print(self, console: Console, asked: Mapping[str, Bound], last: "Report | None") -> None:
        heading(console, f"bench {self.name}")
        for name, value in self.ratios.items():
            besides = [f"asked {asked[name]}"] if name in asked else []
            if last and name in last.ratios:
                besides.append(f"{shown(last.ratios[name])} on {last.environment['date']}")
            console.print(f"{name}: [bold]{shown(value)}[/]  {', '.join(besides)}".rstrip())
        if busy := self.environment.get("busy"):
            console.print(f"[yellow]the machine was busy ({busy}): the figures differ from those of an idle one[/]")
        for side, reason in self.left_out.items():
            console.print(f"[yellow]{side} was left out:[/] {escape(reason)}", soft_wrap=True)
        print_table(console, self.table())


def environment() -> dict[str, Any]:
    return {
        "versions": versions(),
        "cpu": cpu_name(),
        "num_cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": re.sub(r" --json[ =]\S+", "", " ".join(["python -m bench", *map(_relative, sys.argv[1:])])),
    }


def _relative(argument: str) -> str:
    return os.path.relpath(argument) if argument.startswith("/") else argument


def shown(value: float | None) -> str:
    """Format with three significant digits, or as a whole number from 1,000."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
