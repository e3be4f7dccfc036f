"""Several workers on this machine: real horovodrun, real training, and what happens when something goes wrong."""

import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankline.launch.config import LaunchConfig
from rankline.launch.elastic import launch
from rankline.launch.horovod_check import built_with, tensorflow_version
from rankline.training.distributed.config import WorkersConfig
from rankline.training.run.checkpoint import GENERATION_VARIABLE
from rankline.workflows.core.errors import RanklineError, WorkerLostError
from rankline.workflows.core.progress import SILENT
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.harness.commands.command_line import RANKLINE, rankline, recorded
from tests.harness.commands.distributed_document import ELASTIC, HOROVODRUN, WORKERS, arguments, here
from tests.harness.process.waiting import wait_until, wait_until_ended

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")

_ENDLESS = ("--epochs", "1000", "--early-stopping-patience", "0", "--checkpoint-every", "2")
_NUM_EPOCHS = 5
_ELASTIC = (
    *(*arguments(ELASTIC), "--commit-every", "25", "--batch-size", "32"),
    *("--epochs", str(_NUM_EPOCHS), "--early-stopping-patience", "0", "--learning-rate-decay", "linear"),
)
_NO_MPI = "Horovod was built without mpi: make horovod MPI=1"
_HAS_MPI = "mpi" in built_with()
_RUNS = """
SELECT runs.run_uuid, status, value FROM runs
LEFT JOIN params ON params.run_uuid = runs.run_uuid AND key = 'workers.workers'
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers")
    done = rankline("prepare", "movielens", "--rows", "4000", cwd=path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def without_runs(workplace: Path, tmp_path: Path) -> Path:
    """Another workplace, with the same data."""
    prepared = "work/movielens/prepared"
    shutil.copytree(workplace / prepared, tmp_path / prepared)
    return tmp_path


@pytest.mark.parametrize(
    "mpi", [(), pytest.param(("--mpi",), marks=pytest.mark.skipif(not _HAS_MPI, reason=_NO_MPI))], ids=["gloo", "mpi"]
)
def test_workers_train_one_model_in_one_run_and_show_one_line(workplace: Path, mpi: Sequence[str]) -> None:
    before = recorded(workplace, _RUNS)
    done = rankline(*arguments(WORKERS), "--epochs", "1", "--batch-size", "256", *mpi, cwd=workplace)
    assert done.returncode == 0, done.stderr
    shown, model, run = done.stdout.splitlines()
    assert shown.startswith("train")
    assert "AUC" in shown
    assert model == "model: work/movielens/model"
    assert (workplace / "work/movielens/model/manifest.json").is_file()
    assert "MLflow run" in run
    ((_, status, workers),) = set(recorded(workplace, _RUNS)).difference(before)
    assert (status, workers) == ("FINISHED", "2")


def test_ctrl_c_stops_all_workers_and_resume_continues(workplace: Path) -> None:
    with _training(workplace) as (run, below):
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate()
        assert _are_gone(below)
    assert run.returncode == 130
    assert "stopping" in errors
    assert "Traceback" not in output + errors
    # A worker that takes more than five seconds to end is killed, and does not deliver its status. This does.
    assert rankline("sync", cwd=workplace).returncode == 0
    assert recorded(workplace, "SELECT status FROM runs ORDER BY start_time")[-1] == ("KILLED",)
    # Its checkpoint is taken up again; the launcher dies of kill -9 this time.
    with _training(workplace, "--resume") as (run, below):
        run.kill()
        run.communicate()
        assert _are_gone(below)


def test_killed_worker_costs_steps_since_the_checkpoint_and_the_run_stays_one_run(without_runs: Path) -> None:
    with subprocess.Popen(
        [RANKLINE, *_ELASTIC], cwd=without_runs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        below: set[psutil.Process] = set()
        for generation, rank in enumerate((1, 0)):
            which = (run, without_runs, generation, rank)
            wait_until(lambda which=which: _has_ended(run) or _in_training(*which) is not None)
            below |= {*psutil.Process(run.pid).children(recursive=True)}
            if (worker := _in_training(*which)) is not None:
                worker.kill()
        output, errors = run.communicate()
    assert run.returncode == 0, errors.decode()
    assert b"AUC" in output
    wait_until_ended(below)

    model = TrainedModel.load(without_runs / "work/movielens/model")
    assert recorded(without_runs, "SELECT run_uuid, status FROM runs") == [(model.run_id, "FINISHED")]
    ((note,),) = recorded(without_runs, "SELECT value FROM tags WHERE key = 'mlflow.note.content'")
    for rank in (1, 0):
        assert f"worker {rank} was killed by SIGKILL" in note
    assert note.endswith("2 workers continue.")
    epochs = recorded(without_runs, "SELECT step FROM metrics WHERE key = 'valid_auc' ORDER BY step")
    assert sorted({step for (step,) in epochs}) == list(range(1, _NUM_EPOCHS + 1))
    assert model.metrics["epoch"] == _NUM_EPOCHS
    assert model.metrics["valid_auc"] > 0.6
    assert not (without_runs / "work/movielens/model-checkpoint").exists()


def test_error_that_all_workers_find_ends_the_run_with_one_message(workplace: Path) -> None:
    done = rankline(*_ELASTIC, "--global-batch-size", "15", cwd=workplace)
    assert done.returncode == 1
    assert "global_batch_size is 15, expected a multiple of the number of workers (2)" in done.stderr
    assert done.stderr.count("Error:") == 1


def test_plain_horovodrun_trains_one_model_and_worker_0_alone_says_so(workplace: Path) -> None:
    _, *words = shlex.split(here(HOROVODRUN))
    done = _horovodrun(*words, "--epochs", "1", cwd=workplace)
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("[") and "stdout" in line]
    assert [line.partition(" ")[0] for line in said] == [
        "[0]<stdout>:train",
        "[0]<stdout>:model:",
        "[0]<stdout>:MLflow",
    ]
    assert "Warning" not in done.stderr  # of what MLflow has not got: worker 0 is still delivering it


def test_plain_horovodrun_says_what_differs(workplace: Path) -> None:
    script = workplace / "train.sh"
    script.write_text(f'exec "{RANKLINE}" train movielens --epochs 1 --seed $((HOROVOD_RANK + 1))\n')
    done = _horovodrun(*_ON_THIS_MACHINE, "sh", str(script), cwd=workplace)
    assert done.returncode == 1
    (message,) = (line for line in (done.stdout + done.stderr).splitlines() if "Error: " in line and line[0] == "[")
    assert message.startswith("[0]<stderr>:Error: worker 1 has seed 2, but worker 0 has 1.")


_SCRIPT = """
import os, signal, sys, time
from rankline.launch.worker import Worker

what, rank = sys.argv[1], int(sys.argv[2])
worker = Worker.from_environment(os.environ)
with worker.at_work():
    if worker.rank == rank and what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if worker.rank == rank and what == "raise":
        raise ValueError("three is no four")
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("kill", WorkerLostError, "^worker 1 was killed by SIGKILL"),
        ("raise", RanklineError, "^worker 1: ValueError: three is no four$"),
    ],
)
def test_failing_worker_ends_the_others(what: str, kind: type[RanklineError], message: str, tmp_path: Path) -> None:
    command, before = [sys.executable, "-c", _SCRIPT, what, "1"], set(psutil.Process().children(recursive=True))
    with pytest.raises(kind, match=message):
        launch(command, WorkersConfig(workers=2), LaunchConfig(), tmp_path, SILENT)
    assert set(psutil.Process().children(recursive=True)) <= before
    if what == "raise":
        assert "Traceback" in (tmp_path / "worker-1.log").read_text()


_STOPPED_AS_ANOTHER_LEFT = """
import signal, sys
from pathlib import Path
import horovod.tensorflow as hvd
import numpy as np
from rankline.training.config.train import TrainConfig
from rankline.training.distributed.horovod import HorovodWorld
from rankline.training.models.tabular import MLPConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec

def signal_at_an_error(frame, event, _):
    if event == "call" and frame.f_code.co_filename.endswith(("eager/core.py", "framework/errors_impl.py")):
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

prepared = Path(sys.argv[1])
world = HorovodWorld(compression="none", timeout_s=300)
spec, config = FeatureSpec.read(prepared), TrainConfig(model=MLPConfig(hidden=(8,)), batch_size=32)
batch = next(iter(TensorFlowTrainer.batches(prepared, spec, "train", 32, shuffle=False, seed=0)))
trainer = TensorFlowTrainer(spec, config, num_steps=2, world=world)
trainer.step(*batch)
hvd.shutdown()
for exchange in (lambda: world.all_gather(np.arange(3)), lambda: trainer.step(*batch)):
    sys.setprofile(signal_at_an_error)
    try:
        exchange()
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


def test_worker_stopped_while_another_is_lost_counts_as_stopped(workplace: Path) -> None:
    script = workplace / "stopped.py"
    script.write_text(_STOPPED_AS_ANOTHER_LEFT)
    done = _horovodrun(*_ON_THIS_MACHINE, sys.executable, str(script), "work/movielens/prepared", cwd=workplace)
    lines = (done.stdout + done.stderr).splitlines()
    assert sum(line.endswith("<stdout>:stopped") for line in lines) == 4, lines


def test_host_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    hosts = LaunchConfig(hosts="localhost:1,no-such-host.invalid:1")
    with pytest.raises(RanklineError, match=r"^no-such-host\.invalid cannot be reached: .*`ssh no-such-host"):
        launch(["true"], WorkersConfig(), hosts, tmp_path, SILENT)


@pytest.mark.parametrize(
    ("options", "variables"),
    [(("--workers", "2"), {}), ((), {"OMPI_COMM_WORLD_SIZE": "2"})],
    ids=["launched", "a worker of mpirun"],
)
def test_horovod_for_another_tensorflow_is_one_line_with_the_remedy(
    workplace: Path, tmp_path: Path, options: Sequence[str], variables: Mapping[str, str]
) -> None:
    horovod = tmp_path / "horovod"
    shutil.copytree(Path(importlib.import_module("horovod").__path__[0]), horovod)
    (horovod / "metadata.json").write_text('{"tensorflow": "2.14.0"}')
    (library,) = (horovod / "tensorflow").glob("mpi_lib*.so")
    library.write_bytes(b"")  # it does not load, as one that lacks symbols of this TensorFlow
    done = subprocess.run(
        [RANKLINE, "train", "movielens", *options],
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert f"Horovod was built for TensorFlow 2.14.0, not {tensorflow_version()}" in line
    assert "make horovod" in line
    assert "Traceback" not in done.stderr


def _in_training(run: "subprocess.Popen[bytes]", workplace: Path, generation: int, rank: int) -> psutil.Process | None:
    """The process that trains as this worker, once its generation has saved a checkpoint.

    MLflow's store hears of a generation up to five seconds later, which may be as long as a fast machine trains.
    """
    with suppress(OSError, psutil.Error):
        saved_s = (workplace / "work/movielens/model-checkpoint").stat().st_mtime
        for process in psutil.Process(run.pid).children(recursive=True):
            if _is_worker(process, generation, rank) and process.create_time() < saved_s:
                return process
    return None


def _is_worker(process: psutil.Process, generation: int, rank: int) -> bool:
    try:  # the last one, for there are shells around it
        variables = process.environ()
        is_of_rank = variables.get("HOROVOD_RANK") == str(rank) and not process.children()
        return is_of_rank and json.loads(variables[GENERATION_VARIABLE])["number"] == generation
    except psutil.Error:  # it has ended
        return False


def _has_ended(run: "subprocess.Popen[Any]") -> bool:
    """Never, in the midst of training."""
    assert run.poll() is None, run.communicate()
    return False


@contextmanager
def _training(workplace: Path, *options: str) -> "Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]":
    """Two workers in the midst of training, and all processes below the launcher."""
    checkpoint = workplace / "work/movielens/model-checkpoint"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    with subprocess.Popen(
        [RANKLINE, "train", "movielens", "--workers", "2", *_ENDLESS, *options],
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            wait_until(lambda: _has_ended(run) or (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before))
            yield run, psutil.Process(run.pid).children(recursive=True)
        finally:
            run.kill()


def _are_gone(processes: list[psutil.Process]) -> bool:
    assert len(processes) > 3  # what watches over horovodrun, that, and two workers
    return not psutil.wait_procs(processes)[1]


_ON_THIS_MACHINE = ("-np", "2")


def _horovodrun(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    programs = os.pathsep.join((str(RANKLINE.parent), os.environ["PATH"]))
    return subprocess.run(
        [RANKLINE.with_name("horovodrun"), "--gloo", "--disable-cache", *arguments],
        cwd=cwd,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": programs},
        capture_output=True,
        text=True,
        check=False,
    )
