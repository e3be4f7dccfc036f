"""An elastic run on this machine: real horovodrun, real workers, real kill -9."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankline.elastic import ElasticRun
from rankline.horovod_check import problem
from rankline.launch_config import LaunchConfig
from tests.support.command_line import RANKLINE, rankline, recorded
from training.config import WorkersConfig
from training.elastic import GENERATION_VARIABLE
from workflows.errors import RanklineError
from workflows.progress import SILENT
from workflows.trained import TrainedModel

_NUM_EPOCHS = 6
_PROBLEM = problem()
_OPTIONS = (
    *("--workers", "2", "--min-workers", "1", "--max-workers", "2", "--commit-every", "25", "--batch-size", "16"),
    *("--epochs", str(_NUM_EPOCHS), "--early-stopping-patience", "0", "--learning-rate-decay", "linear"),
)
_TWO = WorkersConfig(workers=2, min_workers=1, max_workers=2)
# A worker that learns nothing. It appends to a file of its rank what it knows of its generation, and does what the
# arguments say of the number of the generation: nothing, which is to make the model, or something else.
_TOY = """
import json, os, signal, sys, time
from pathlib import Path
from rankline.worker import Worker, report
from training.elastic import Generation

directory, *actions = sys.argv[1:]
worker, generation = Worker.from_environment(os.environ), Generation.from_environment(os.environ)
action = actions[generation.number] if generation.number < len(actions) else ""
seen = {"size": int(os.environ["HOROVOD_SIZE"]), "generation": generation.number, "run_id": generation.run_id,
        "has_checkpoint": generation.has_checkpoint, "cause": generation.cause}
with Path(directory, f"seen-{worker.rank}").open("a") as file:
    file.write(json.dumps(seen) + "\\n")
with worker.at_work():
    if worker.rank == 0:
        report(run_id="the run")
    if action == "kill" and worker.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "raise" and worker.rank == 0:
        raise ValueError("three is no four")
    if action == "grow" and worker.rank == 0:
        Path(directory, "hosts").write_text("localhost:1\\n127.0.0.1:1\\n")
        for step in range(1_000_000):
            report(checkpoint_step=step)
            time.sleep(0.1)
    if action == "shrink" and worker.rank == 0:
        Path(directory, "hosts").write_text("localhost:1\\n")
    if action:
        time.sleep(600)
    if worker.rank == 0:
        report(model={"path": "model", "run_id": "the run", "tracking_uri": "sqlite://"})
"""

pytestmark = [
    pytest.mark.skipif(_PROBLEM is not None, reason=_PROBLEM or ""),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elastic")
    done = rankline("prepare", "movielens", "--rows", "16000", cwd=path)
    assert done.returncode == 0, done.stderr
    return path


def test_a_killed_worker_costs_steps_since_the_checkpoint_and_the_run_stays_one_run(workplace: Path) -> None:
    with subprocess.Popen(
        [RANKLINE, "train", "movielens", *_OPTIONS], cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        below: set[psutil.Process] = set()
        for generation, rank in enumerate((1, 0)):
            _wait_until(lambda number=generation: _num_generations(workplace) > number, run)
            _wait_until(lambda: (workplace / "work/movielens/model-checkpoint").exists(), run)
            below |= {*psutil.Process(run.pid).children(recursive=True)}
            _worker(run, generation, rank).kill()
        output, errors = run.communicate()
    assert run.returncode == 0, errors.decode()
    assert b"AUC" in output
    assert [process for process in below if process.is_running() and process.status() != "zombie"] == []

    model = TrainedModel.load(workplace / "work/movielens/model")
    assert recorded(workplace, "SELECT run_uuid, status FROM runs") == [(model.run_id, "FINISHED")]
    ((note,),) = recorded(workplace, "SELECT value FROM tags WHERE key = 'mlflow.note.content'")
    for rank in (1, 0):
        assert f"worker {rank} was ended by SIGKILL" in note
    assert note.endswith("2 workers go on.")
    epochs = recorded(workplace, "SELECT step FROM metrics WHERE key = 'valid_auc' ORDER BY step")
    assert sorted({step for (step,) in epochs}) == list(range(1, _NUM_EPOCHS + 1))
    assert model.metrics["epoch"] == _NUM_EPOCHS
    assert model.metrics["valid_auc"] > 0.6
    assert not (workplace / "work/movielens/model-checkpoint").exists()


def test_an_error_that_all_workers_find_ends_the_run_with_one_message(workplace: Path) -> None:
    done = rankline("train", "movielens", *_OPTIONS, "--global-batch-size", "15", cwd=workplace)
    assert done.returncode == 1
    assert "global_batch_size is 15, which 2 workers do not divide" in done.stderr
    assert done.stderr.count("Error:") == 1


def test_a_generation_knows_of_those_before_it(tmp_path: Path) -> None:
    model = _toy(tmp_path, "kill")
    assert model["run_id"] == "the run"
    first, second = _seen(tmp_path, rank=0)
    assert first == {"size": 2, "generation": 0, "run_id": None, "has_checkpoint": False, "cause": ""}
    assert second["cause"].startswith("worker 0 was ended by SIGKILL")
    assert second | {"cause": ""} == first | {"generation": 1, "run_id": "the run"}


def test_hosts_join_at_a_checkpoint_and_leave_at_once(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o755)
    options = LaunchConfig(
        host_discovery_script=str(script), network_interface="eth0"
    )  # not for workers of one machine
    _toy(tmp_path, "grow", "shrink", num_workers=1, options=options)
    seen = _seen(tmp_path, rank=0)
    assert [(generation["size"], generation["cause"]) for generation in seen] == [
        (1, ""),
        (2, "more hosts joined."),
        (1, "127.0.0.1 left the list of hosts."),
    ]
    assert [generation["has_checkpoint"] for generation in seen] == [False, True, True]


def test_workers_that_are_lost_again_and_again_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RanklineError, match="workers were lost 2 times in a row without a checkpoint.*SIGKILL"):
        _toy(tmp_path, *["kill"] * 9, max_failures=2)
    assert len(_seen(tmp_path, rank=0)) == 2


def test_a_worker_that_fails_by_itself_is_not_started_again(tmp_path: Path) -> None:
    with pytest.raises(RanklineError, match="^ValueError: three is no four$"):
        _toy(tmp_path, "raise")
    assert len(_seen(tmp_path, rank=0)) == 1


def _toy(
    directory: Path, *actions: str, num_workers: int = 2, options: LaunchConfig | None = None, max_failures: int = 5
) -> "dict[str, Any]":
    command = [sys.executable, "-c", _TOY, str(directory), *actions]
    run = ElasticRun(command, _TWO, options or LaunchConfig(), directory, SILENT, max_failures=max_failures)
    return dict(run.run(num_workers))


def _seen(directory: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / f"seen-{rank}").read_text().splitlines()]


def _worker(run: "subprocess.Popen[bytes]", generation: int, rank: int) -> psutil.Process:
    """The process that trains as this worker."""
    (found,) = (
        process for process in psutil.Process(run.pid).children(recursive=True) if _is_worker(process, generation, rank)
    )
    return found


def _is_worker(process: psutil.Process, generation: int, rank: int) -> bool:
    try:  # the last one, for there are shells around it
        variables = process.environ()
        is_of_rank = variables.get("HOROVOD_RANK") == str(rank) and not process.children()
        return is_of_rank and json.loads(variables[GENERATION_VARIABLE])["number"] == generation
    except psutil.Error:  # it has ended
        return False


def _num_generations(workplace: Path) -> int:
    """Those that went on with the run."""
    return len(recorded(workplace, "SELECT 1 FROM metrics WHERE key = 'workers'"))


def _wait_until(condition: Callable[[], bool], run: "subprocess.Popen[bytes]") -> None:
    while not condition():
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
