"""What a benchmark found: figures per side, ratios between sides, and the environment, as a table and as JSON."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from workflows.artifacts import versions
from workflows.machine import cpu_name


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark, all sides measured in one run.

    Attributes:
        name: key in `bench.BENCHMARKS`.
        results: side → figure → value.
        ratios: what the sides come to against each other.
    """

    name: str
    results: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, float]
    environment: Mapping[str, Any] = field(default_factory=lambda: environment())

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "name": self.name,
            "results": {side: dict(figures) for side, figures in self.results.items()},
            "ratios": dict(self.ratios),
            "environment": dict(self.environment),
        }

    def print(self, console: Console) -> None:
        """For people."""
        table = Table(title=f"bench {self.name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("", *self.results):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for figure in dict.fromkeys(name for side in self.results.values() for name in side):
            table.add_row(figure, *(_format(side.get(figure)) for side in self.results.values()))
        console.print(table)
        for key, value in self.ratios.items():
            console.print(f"{key}: [bold]{value:.2f}[/]")


def environment() -> dict[str, Any]:
    """Versions, CPU, memory and the command line."""
    return {
        "versions": versions(),
        "cpu": cpu_name(),
        "num_cpus": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
    }


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
