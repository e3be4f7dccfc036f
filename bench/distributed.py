"""distributed: what several workers learn, how fast, what they send, and how they die.

Workers are real Horovod processes (Gloo), which `bench.distributed_worker` runs with one thread each. Figures of two
workers are for each of them, but rows per second, which are those of both together.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench import etl, killed_workers
from bench.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.rows import write_rows
from rankline import pipeline
from rankline.display import Stages
from rankline.horovodrun import HOROVODRUN
from rankline.recipes import recipe_named
from rankline.source import SourceConfig
from rankline.worker import THREADS_VARIABLES
from rankline.workspace import Workspace
from workflows.feature_spec import FILE_NAME
from workflows.progress import SILENT, Progress

ROOT = Path(__file__).parents[1]
MOVIELENS = "movielens"
OPTIMIZERS = ("sgd", "adam", "lazy_adam", "rowwise_adagrad")
NUM_CALM = 5  # runs that nobody disturbs, for the spread of AUC
KILLED_ROWS = 500_000
TABLE_ROWS = (100_000, 400_000, 1_600_000)  # of 16 columns: 6 to 102 MB
TOUCHED_ROWS = (1_024, 4_096, 16_384)  # by each worker in a step
_ISOLATED = ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent")
_LEAST_NORM = 1e-3  # of a variable, to which its differences are related: some start at zero
_ALONE, _TOGETHER, _APART = "1 worker", "2 workers", "2 processes apart"
_SIDES = _ONE, _SEVERAL, _REVERSED = "one", "several", "reversed"

Part = tuple[dict[str, dict[str, float]], dict[str, float]]
"""Side → figure → value, and ratios."""


def run(repeats: int, *, num_kills: int = 20) -> Report:
    """Measure all of it.

    Args:
        repeats: turns of each side, where sides take turns.
        num_kills: runs of which a worker is killed.

    Raises:
        RuntimeError: workers failed; the message has their last words. Or two Dask clusters wrote other files.
    """
    parts: dict[str, Callable[[Progress], Part]] = {
        "weights": lambda _: measure_weights(),
        "speed": lambda _: measure_speed(repeats),
        "bytes": lambda _: measure_bytes(),
        "etl": lambda _: measure_etl(repeats),
        "kills": partial(measure_kills, num_kills),
    }
    results: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    with Stages(list(parts)) as stages:
        for name, measure in parts.items():
            with stages.stage(name) as progress:
                sides, of_part = measure(progress)
            for side, figures in sides.items():
                results |= {f"{name}, {side}: {figure}": {"value": value} for figure, value in figures.items()}
            ratios |= of_part
    return Report(name="distributed", results=results, ratios=ratios)


def measure_weights(
    *,
    num_workers: int = 2,
    global_rows: int = 1_024,
    num_steps: int = 20,
    optimizers: Sequence[str] = OPTIMIZERS,
) -> Part:
    """How far workers and one process come apart on the same global batches, of which workers have unequal shares.

    A variable's difference is the norm of the differences over the norm of its weights; the figure is that of the
    variable where it is largest. Averages of weights count too. `rounding` is what one process differs from itself by
    when it takes the rows of each batch in reverse order, so that nothing but the rounding of sums is another.
    """
    results = {}
    with scratch_directory() as directory:
        _write_rows(directory, global_rows * num_steps)
        work: dict[str, Any] = {"directory": str(directory), "global_rows": global_rows, "optimizers": optimizers}
        for side, size, is_reversed in ((_ONE, 1, False), (_SEVERAL, num_workers, False), (_REVERSED, 1, True)):
            run_workers("weights", size, **work, is_reversed=is_reversed, output=str(directory / side))
        for optimizer in optimizers:
            one, several, turned = (np.load(directory / side / f"{optimizer}.npz") for side in _SIDES)
            results[optimizer] = {
                "weights_difference": _largest_difference(several, one),
                "rounding": _largest_difference(turned, one),
            }
    return results, {
        figure: max(figures[figure] for figures in results.values()) for figure in ("weights_difference", "rounding")
    }


def _largest_difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    return max(_norm(found[key] - expected[key]) / max(_norm(expected[key]), _LEAST_NORM) for key in expected)


def _norm(weights: Any) -> float:
    return float(np.linalg.norm(weights))


def _write_rows(directory: Path, num_rows: int) -> None:
    (directory / FILE_NAME).write_text(write_rows(directory, num_rows).to_yaml(), encoding="utf-8")


def measure_speed(repeats: int, *, batch_size: int = 32_768, num_steps: int = 70, num_rows: int = 5_000_000) -> Part:
    """Two workers against one, the MovieLens recipe from its loader to its optimizer, each side started anew.

    A worker has one core for all that it does, as `rankline train` gives it. Two processes beside each other that do
    not exchange are what two workers could reach: they share caches and memory.

    Args:
        repeats: turns of each side.
        batch_size: rows per step and worker.
        num_steps: of a turn, after some that do not count.
        num_rows: to read from; a pass over them takes longer than a turn by default.
    """
    with scratch_directory() as directory:
        _write_rows(directory, num_rows)
        work: dict[str, Any] = {
            "directory": str(directory),
            "batch_size": batch_size,
            "num_steps": num_steps,
            "num_places": 2,
        }

        def rows_per_s(size: int, place: int = 0) -> float:
            return float(run_workers("speed", size, **work, place=place)[0]["rows_per_s"])

        def apart() -> float:
            with ThreadPoolExecutor() as processes:
                return sum(processes.map(partial(rows_per_s, 1), range(2)))

        sides: dict[str, Turn] = {_ALONE: partial(rows_per_s, 1), _TOGETHER: partial(rows_per_s, 2), _APART: apart}
        rates = take_turns(sides, repeats)
    return medians(rates, "rows_per_s"), {
        "two_workers_speedup": median_ratio(rates, _TOGETHER, _ALONE),
        "two_processes_apart": median_ratio(rates, _APART, _ALONE),
    }


def measure_bytes(
    *,
    table_rows: Sequence[int] = TABLE_ROWS,
    touched_rows: Sequence[int] = TOUCHED_ROWS,
    num_steps: int = 20,
    idle_s: float = 2.0,
) -> Part:
    """What a worker sends in a step of a model that is nearly nothing but a table.

    Counted by the kernel: bytes sent over the loopback device, the headers of TCP with them, less what idle workers
    send in the same time. The two workers are in a network namespace of their own, if bubblewrap can make one; else
    others on the machine count, too.

    Args:
        table_rows: sizes of the table, with the middle number of touched rows each.
        touched_rows: different rows that a worker looks up in a step, with the middle size each.
        num_steps: that are counted.
        idle_s: how long workers send nothing of their own, after each table's steps.
    """
    middle = table_rows[len(table_rows) // 2], touched_rows[len(touched_rows) // 2]
    cases = {(size, middle[1]) for size in table_rows} | {(middle[0], touched) for touched in touched_rows}
    tables = sorted(cases)
    isolation = _ISOLATED if _can_isolate() else ()
    found = run_workers("sent", 2, prefix=isolation, tables=tables, num_steps=num_steps, idle_s=idle_s)[0]
    sparse, dense = (dict(zip(tables, found[kind], strict=True)) for kind in ("sparse", "dense"))
    results = {
        f"{size:,} rows, {touched:,} touched": {
            "sparse_bytes": sparse[size, touched]["bytes"],
            "dense_bytes": dense[size, touched]["bytes"],
            "sparse_step_ms": sparse[size, touched]["step_ms"],
            "dense_step_ms": dense[size, touched]["step_ms"],
        }
        for size, touched in tables
    }

    def bytes_of(size: int, touched: int) -> float:
        return float(sparse[size, touched]["bytes"])

    few, many = (bytes_of(middle[0], touched) for touched in (touched_rows[0], touched_rows[-1]))
    small, large = (bytes_of(size, middle[1]) for size in (table_rows[0], table_rows[-1]))
    return results, {
        "bytes_growth_with_table": large / small,
        "bytes_growth_with_touched_rows": many / few,
        "touched_rows_growth": touched_rows[-1] / touched_rows[0],
        "sparse_over_dense_bytes": large / dense[table_rows[-1], middle[1]]["bytes"],
    }


def _can_isolate() -> bool:
    return shutil.which(_ISOLATED[0]) is not None and subprocess.run([*_ISOLATED, "true"], check=False).returncode == 0


def measure_etl(repeats: int) -> Part:
    """Two Dask workers against one, see `bench.etl`."""
    report = etl.run(repeats)
    return {side: dict(figures) for side, figures in report.results.items()}, dict(report.ratios)


def measure_kills(num_kills: int, progress: Progress = SILENT, *, num_rows: int = KILLED_ROWS) -> Part:
    """Elastic runs of which a random worker dies at a random moment, see `bench.killed_workers`."""
    with scratch_directory() as directory:
        workspace = Workspace(recipe=MOVIELENS, root=directory)
        silent = Stages(["source", "prepare"], Console(quiet=True, force_terminal=False))
        pipeline.prepare(recipe_named(MOVIELENS), SourceConfig(rows=num_rows), workspace, silent)
        report = killed_workers.measure_kills(
            MOVIELENS, workspace.root, num_calm=NUM_CALM, num_killed=num_kills, progress=progress
        )
    figures = {key: float(value) for key, value in report.to_dict().items() if isinstance(value, int | float)}
    return {"kill -9": figures}, {
        "kills_ended_well_share": figures["num_ended_well"] / num_kills,
        "kills_auc_within_spread_share": figures["num_auc_within_spread"] / num_kills,
    }


def run_workers(task: str, size: int, *, prefix: Sequence[str] = (), **arguments: Any) -> list[dict[str, Any]]:
    """What each worker of a task of `bench.distributed_worker` found, by rank.

    Args:
        task: name of a function there.
        size: number of workers; one is a plain process.
        prefix: of the command that starts them.
        **arguments: of the task; what JSON can hold.

    Raises:
        RuntimeError: they failed.
    """
    with scratch_directory() as directory:
        (directory / "task.json").write_text(json.dumps({"task": task, "arguments": arguments}), encoding="utf-8")
        command = [sys.executable, "-m", "bench.distributed_worker", str(directory)]
        if size > 1:
            places = ["-np", str(size), "-H", f"localhost:{size}", "--network-interface", "lo", "--disable-cache"]
            command = [*HOROVODRUN, "--gloo", *places, *command]
        done = subprocess.run(
            [*prefix, *command],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **dict.fromkeys(THREADS_VARIABLES, "1")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{size} workers at {task!r} ended with {done.returncode}: {done.stdout[-3000:]}")
        return [json.loads((directory / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
