"""Kills (`kill -9`) one worker of each elastic run at a random moment, and checks whether the run recovers.

    python -m bench.chaos.workers movielens --work-dir work --kills 20

The recipe must be prepared. Undisturbed runs first determine the usual duration and how AUC varies with the seed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from mlflow import MlflowClient

from rankline.recipes.workspace import Workspace
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.schema.model_artifact import TrainedModel

_DEVIATIONS = 3.0  # allowed distance of an AUC from the mean of undisturbed runs
_TIMES_AS_LONG = 10.0  # times an undisturbed run: time limit of a disturbed run
_LOOK_EVERY_S = 0.05
ELASTIC = ("--workers", "2", "--min-workers", "1", "--max-workers", "2")


@dataclass(frozen=True, kw_only=True)
class KillRecord:
    seed: int  # seed of the weights and the order of rows
    killed: int | None  # number of the killed worker; None if none was killed
    killed_at_s: float  # time of the kill since the start
    duration_s: float  # duration of the whole run
    exit_code: int  # 0 if the run succeeded
    auc: float | None  # AUC of the validation rows; None if the run produced no model
    num_mlflow_runs: int  # number of FINISHED runs added to MLflow; -1 if any added run has another status
    errors: str  # end of the output of a failed run

    @property
    def has_ended_well(self) -> bool:
        """Whether there is a model, and exactly one record of the run."""
        return self.exit_code == 0 and self.auc is not None and self.num_mlflow_runs == 1


@dataclass(frozen=True, kw_only=True)
class KillReport:
    calm: Sequence[KillRecord]
    disturbed: Sequence[KillRecord]

    def to_dict(self) -> dict[str, object]:
        calm, ended = [record.auc or 0.0 for record in self.calm], [run for run in self.disturbed if run.has_ended_well]
        mean, deviation = statistics.fmean(calm), statistics.stdev(calm) if len(calm) > 1 else 0.0
        within = [run for run in ended if abs((run.auc or 0.0) - mean) <= _DEVIATIONS * deviation]
        return {
            "num_killed": len(self.disturbed),
            "num_ended_well": len(ended),
            "num_auc_within_spread": len(within),
            "calm_auc_mean": mean,
            "calm_auc_std": deviation,
            "disturbed_auc_mean": statistics.fmean(run.auc or 0.0 for run in ended) if ended else None,
            "calm_duration_s": statistics.median(run.duration_s for run in self.calm),
            "disturbed_duration_s": statistics.median(run.duration_s for run in ended) if ended else None,
            "runs": [asdict(run) for run in (*self.calm, *self.disturbed)],
        }


def measure_kills(
    recipe: str,
    work_dir: Path,
    *,
    num_calm: int,
    num_killed: int,
    options: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = SILENT,
) -> KillReport:
    rng, workspace = random.Random(seed), Workspace(recipe=recipe, root=work_dir)
    calm: list[KillRecord] = []
    for number in range(num_calm):
        calm.append(_train(workspace, options, number))
        progress.update(number + 1, num_calm + num_killed, f"{number + 1} undisturbed runs")
    usual_s = statistics.median(record.duration_s for record in calm)
    disturbed: list[KillRecord] = []
    while len(disturbed) < num_killed:
        number = len(calm) + len(disturbed)
        record = _train(workspace, options, number, rng, rng.uniform(0, usual_s), _TIMES_AS_LONG * usual_s)
        (calm if record.killed is None else disturbed).append(record)  # a run may end before the kill
        num_ended_well = sum(run.has_ended_well for run in disturbed)
        note = f"{num_ended_well} of {len(disturbed)} runs with a killed worker finished successfully"
        progress.update(num_calm + len(disturbed), num_calm + num_killed, note)
    return KillReport(calm=calm, disturbed=disturbed)


def _train(
    workspace: Workspace,
    options: Sequence[str],
    seed: int,
    rng: random.Random | None = None,
    kill_at_s: float = 0.0,
    limit_s: float | None = None,
) -> KillRecord:
    program = str(Path(sys.executable).with_name("rankline"))
    command = [program, "train", workspace.recipe, "--work-dir", str(workspace.root)]
    manifest, before = workspace.model / "manifest.json", _statuses(workspace)
    manifest_before = manifest.stat().st_mtime_ns if manifest.exists() else None
    began = time.monotonic()
    with subprocess.Popen(
        [*command, *ELASTIC, "--seed", str(seed), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        killed = _kill_one(run, rng, began + kill_at_s) if rng else None
        killed_at_s = time.monotonic() - began
        try:
            said, _ = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            run.terminate()
            said = f"the run hangs: still running after {limit_s:.0f} s. {run.communicate()[0]}"
    is_new = manifest.exists() and manifest.stat().st_mtime_ns != manifest_before
    new = [status for run_id, status in _statuses(workspace).items() if run_id not in before]
    return KillRecord(
        seed=seed,
        killed=killed,
        killed_at_s=killed_at_s if killed is not None else 0.0,
        duration_s=time.monotonic() - began,
        exit_code=run.returncode,
        auc=TrainedModel.load(workspace.model).metrics["valid_auc"] if is_new else None,
        num_mlflow_runs=len(new) if all(status == "FINISHED" for status in new) else -1,
        errors="" if run.returncode == 0 else said[-500:],
    )


def _kill_one(run: "subprocess.Popen[str]", rng: random.Random, moment_s: float) -> int | None:
    """Kill one of the workers running at `moment_s`, or at the first moment after it with any workers."""
    while run.poll() is None:
        if time.monotonic() >= moment_s and (workers := _workers(run.pid)):
            number = rng.choice(sorted(workers))
            for process in workers[number]:
                process.kill()
            return number
        time.sleep(_LOOK_EVERY_S)
    return None


def _workers(process_id: int) -> dict[int, list[psutil.Process]]:
    """Return the processes of each worker below a process, by worker number, starting with the worker's shell."""
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.Process(process_id).children(recursive=True):
        try:
            rank = process.environ().get("HOROVOD_RANK")
        except psutil.Error:
            continue
        if rank:
            found.setdefault(int(rank), []).append(process)
    return found


def _statuses(workspace: Workspace) -> dict[str, str]:
    if not (workspace.root / "mlflow.db").exists():
        return {}
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{workspace.root.absolute() / 'mlflow.db'}"))
    experiment = client.get_experiment_by_name(workspace.recipe)
    runs = client.search_runs([experiment.experiment_id], max_results=10_000) if experiment else []
    return {run.info.run_id: run.info.status for run in runs}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos.workers", description="Kills a worker of elastic runs."
    )
    parser.add_argument("recipe")
    parser.add_argument("--work-dir", type=Path, default=Path("work"))
    parser.add_argument("--calm", type=int, default=5, help="number of undisturbed runs")
    parser.add_argument("--kills", type=int, default=20, help="number of runs with a killed worker")
    arguments, options = parser.parse_known_args()  # other options go to `rankline train`
    report = measure_kills(
        arguments.recipe,
        arguments.work_dir,
        num_calm=arguments.calm,
        num_killed=arguments.kills,
        options=options,
    )
    print(json.dumps(report.to_dict(), indent=2))


if __name__ == "__main__":
    main()
