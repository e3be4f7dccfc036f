"""tracking: duration of commands that read a store of 1,000 runs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from bench.harness.report import Report, scratch_directory

_METRICS_OF_A_RUN, _PARAMS_OF_A_RUN = 20, 50


def run(repeats: int, num_runs: int = 1000) -> Report:
    with scratch_directory() as directory:
        results = _looks(directory / "many", num_runs, repeats)
    slowest = max(figures["seconds"] for figures in results.values())
    return Report(name="tracking", results=results, ratios={"looking_at_1000_runs_s": slowest})


_VERBS: Mapping[str, Callable[[list[str]], list[str]]] = {
    "runs": lambda _: ["runs"],
    "runs, all": lambda ids: ["runs", "--limit", str(len(ids))],
    "compare": lambda ids: ["compare", *ids[:2]],
}
"""Arguments of each command, given the ids of the runs."""


def _looks(directory: Path, num_runs: int, repeats: int) -> dict[str, dict[str, float]]:
    ids = _many_runs(directory, num_runs)
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    results = {}
    for verb, typed in _VERBS.items():
        command = [str(Path(sys.executable).with_name("rankline")), *typed(ids), "--work-dir", str(directory)]
        start = partial(subprocess.run, command, check=True, capture_output=True, env=environment)
        _took(start)  # brings imported files into the page cache
        took = [_took(start) for _ in range(repeats)]
        results[verb] = {
            "seconds": median(seconds for seconds, _ in took),
            "cpu_s": median(cpu_s for _, cpu_s in took),
        }
    return results


def _took(command: Callable[[], object]) -> tuple[float, float]:
    begin, before = time.perf_counter(), os.times()
    command()
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, cpu_s


def _many_runs(directory: Path, num_runs: int) -> list[str]:
    directory.mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}")
    experiment = client.create_experiment("movielens", artifact_location=(directory / "mlartifacts").as_uri())
    ids = []
    for number in range(num_runs):
        run_id = client.create_run(experiment, run_name=f"mlp, seed {number}").info.run_id
        metrics = [Metric(f"model/valid_{name}", number / num_runs, number, 1) for name in range(_METRICS_OF_A_RUN - 1)]
        params = [Param(f"choice_{name}", str(number)) for name in range(_PARAMS_OF_A_RUN)]
        client.log_batch(run_id, [*metrics, Metric("model/valid_auc", 0.7, number, 1)], params)
        client.set_terminated(run_id)
        ids.append(run_id)
    return ids
