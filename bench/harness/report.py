"""What a benchmark found: figures per side, ratios between sides, and the environment, as a table and as JSON."""

import gc
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rich.console import Console

from bench.harness.targets import Bound
from rankline.terminal.console import heading, print_table
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.machine import cpu_name
from rankline.workflows.storage.artifacts import versions

FIGURES = Path("docs") / "figures"
"""Where the project keeps what its benchmarks found last, in the folders of the benchmarks."""
Turn = Callable[[], float]
Rates = Mapping[str, Sequence[float]]
"""Side → what each of its turns gave."""


def figures_file(name: str, root: Path = Path()) -> Path:
    """Where figures are, such as docs/figures/serving/serving-movielens-next.json."""
    return next((root / FIGURES).rglob(f"{name}.json"), FIGURES / f"{name}.json")


def take_turns(sides: Mapping[str, Turn], repeats: int) -> Rates:
    """Each side in turn, `repeats` times, after one turn that does not count: it imports, compiles and fills caches."""
    for turn in sides.values():
        turn()
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, turn in sides.items():
            gc.collect()  # what the side before left behind may hold threads
            rates[side].append(turn())
    return rates


def median_ratio(rates: Rates, one: str, other: str) -> float:
    """Median over the turns of what `one` gave for each unit of `other`; the machine may be slower in the next turn."""
    return statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True))


def medians(rates: Rates, figure: str) -> dict[str, dict[str, float]]:
    return {side: {figure: statistics.median(values)} for side, values in rates.items()}


def medians_of(turns: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Results of sides whose turns gave several figures each: side → figure → what each turn gave."""
    return {
        side: {name: statistics.median(values) for name, values in figures.items()} for side, figures in turns.items()
    }


def p50_ms(ask: Callable[[], object], num_calls: int, num_warmup: int = 0) -> float:
    """Median latency in milliseconds of calls one after another; those that warm up do not count."""
    latencies_ns = []
    for _ in range(num_warmup + num_calls):
        begin = time.perf_counter_ns()
        ask()
        latencies_ns.append(time.perf_counter_ns() - begin)
    return statistics.median(latencies_ns[num_warmup:]) / 1e6


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory of this benchmark's own as long as the block lasts."""
    with TemporaryDirectory(prefix="rankline-bench-") as name:
        yield Path(name)


@dataclass(frozen=True, kw_only=True)
class Report:
    name: str
    results: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, float]
    environment: Mapping[str, Any] = field(default_factory=lambda: environment())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "results": {side: dict(figures) for side, figures in self.results.items()},
            "ratios": dict(self.ratios),
            "environment": dict(self.environment),
        }

    @classmethod
    def load(cls, path: Path) -> "Report":
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} holds no report of a benchmark: {error}.") from None

    def table(self) -> dict[str, list[str]]:
        """Columns of text, the first of names: sides in rows or in columns, whichever is narrower."""
        figures = list(dict.fromkeys(name for side in self.results.values() for name in side))
        cells = {(side, name): value for side, values in self.results.items() for name, value in values.items()}
        rows, columns = list(self.results), figures
        if len(columns) > len(rows):
            rows, columns = figures, list(self.results)
            cells = {(figure, side): value for (side, figure), value in cells.items()}
        return {"": rows, **{column: [shown(cells.get((row, column))) for row in rows] for column in columns}}

    def print(self, console: Console, asked: Mapping[str, Bound], last: "Report | None") -> None:
        """Print ratios, with what they are asked to be and what they were, then figures."""
        heading(console, f"bench {self.name}")
        for name, value in self.ratios.items():
            besides = [f"asked {asked[name]}"] if name in asked else []
            if last and name in last.ratios:
                besides.append(f"{shown(last.ratios[name])} on {last.environment['date']}")
            console.print(f"{name}: [bold]{shown(value)}[/]  {', '.join(besides)}".rstrip())
        if busy := self.environment.get("busy"):
            console.print(f"[yellow]the machine was busy ({busy}): the figures are not those of a quiet one[/]")
        print_table(console, self.table())


def environment() -> dict[str, Any]:
    return {
        "versions": versions(),
        "cpu": cpu_name(),
        "num_cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": re.sub(r" --json[ =]\S+", "", " ".join(["python -m bench", *sys.argv[1:]])),
    }


def shown(value: float | None) -> str:
    """With three digits, or all of those before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
