"""distributed: training speed of two workers, and the number of bytes they send.

Workers are real Horovod processes (Gloo), which run `bench.training.distributed_worker` with one thread each. Metrics
of two workers are per worker, except rows per second, which are the total of both.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.report import Report, Turn, median_ratio, medians, scratch_directory, take_turns
from bench.harness.synthetic_rows import write_rows
from rankline.launch.horovodrun import HOROVODRUN
from rankline.launch.worker import THREADS_VARIABLES
from rankline.workflows.schema.feature_spec import FILE_NAME

ROOT = Path(__file__).parents[2]
TABLE_ROWS = (100_000, 400_000, 1_600_000)  # with 16 columns: 6 to 102 MB
TOUCHED_ROWS = (1_024, 4_096, 16_384)  # by each worker per step
_ISOLATED = ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent")
_ALONE, _TOGETHER, _APART = "1 worker", "2 workers", "2 processes apart"

Part = tuple[dict[str, dict[str, float]], dict[str, float]]
"""Results (side → metric → value) and ratios."""


def run(repeats: int) -> Report:
    results: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    for name, (sides, of_part) in {"speed": measure_speed(repeats), "bytes": measure_bytes()}.items():
        for side, figures in sides.items():
            results |= {f"{name}, {side}: {figure}": {"value": value} for figure, value in figures.items()}
        ratios |= of_part
    return Report(name="distributed", results=results, ratios=ratios)


def measure_speed(repeats: int, *, batch_size: int = 32_768, num_steps: int = 70, num_rows: int = 5_000_000) -> Part:
    """Compare two workers with one on the MovieLens recipe, from loader to optimizer, restarting each side.

    A worker has one core for all its work, as in `rankline train`. The upper bound is two processes that run side by
    side without communicating: they share caches and memory.
    """
    with scratch_directory() as directory:
        (directory / FILE_NAME).write_text(write_rows(directory, num_rows).to_yaml(), encoding="utf-8")
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
    """Measure the bytes that a worker sends per step of a model that consists almost only of a table.

    The kernel counts the bytes sent over the loopback device, including TCP headers; the traffic of idle workers over
    the same time is subtracted. The two workers run in their own network namespace if bubblewrap can create one;
    otherwise the count includes other traffic on the machine. Each size is measured with the middle number of rows that
    a worker looks up, and the other way round.
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


def run_workers(task: str, size: int, *, prefix: Sequence[str] = (), **arguments: Any) -> list[dict[str, Any]]:
    """Run a task of `bench.training.distributed_worker`, and return the result of each worker, by rank."""
    with scratch_directory() as directory:
        (directory / "task.json").write_text(json.dumps({"task": task, "arguments": arguments}), encoding="utf-8")
        command = [sys.executable, "-m", "bench.training.distributed_worker", str(directory)]
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
            raise RuntimeError(
                f"{size} workers at {task!r} exited with status {done.returncode}: {done.stdout[-3000:]}"
            )
        return [json.loads((directory / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
