"""An elastic run on this machine: real workers, real Horovod, real kill -9."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rankline.horovod_check import problem
from tests.support.command_line import RANKLINE, rankline, recorded
from training.elastic import ADDRESS_VARIABLE
from workflows.trained import TrainedModel

_LIMIT_S = 600
_NUM_EPOCHS = 16  # so many that two replacements, which import TensorFlow, come before the end
_PROBLEM = problem()
_OPTIONS = (
    *("--workers", "2", "--min-workers", "1", "--max-workers", "2", "--commit-every", "25", "--batch-size", "16"),
    *("--epochs", str(_NUM_EPOCHS), "--early-stopping-patience", "0", "--learning-rate-decay", "linear"),
)

pytestmark = [
    pytest.mark.skipif(_PROBLEM is not None, reason=_PROBLEM or ""),
    pytest.mark.timeout(_LIMIT_S),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elastic")
    done = rankline("prepare", "movielens", "--rows", "16000", cwd=path)
    assert done.returncode == 0, done.stderr
    return path


def test_a_run_survives_its_workers_one_after_another_and_stays_one_run(workplace: Path) -> None:
    with subprocess.Popen(
        [RANKLINE, "train", "movielens", *_OPTIONS], cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        below: set[psutil.Process] = set()
        for number in range(2):  # worker 0, and the one that takes over from it
            _wait_until(lambda number=number: _num_begun(workplace, 2) > number, run)
            below |= {*psutil.Process(run.pid).children(recursive=True)}
            _worker(run, number).kill()
            _wait_until(lambda number=number: _num_begun(workplace, 1) > number, run)
        output, errors = run.communicate(timeout=_LIMIT_S)
    assert run.returncode == 0, errors.decode()
    assert b"AUC" in output
    assert [process for process in below if process.is_running() and process.status() != "zombie"] == []

    model = TrainedModel.load(workplace / "work/movielens/model")
    assert recorded(workplace, "SELECT run_uuid, status FROM runs") == [(model.run_id, "FINISHED")]
    ((note,),) = recorded(workplace, "SELECT value FROM tags WHERE key = 'mlflow.note.content'")
    assert "worker 0 on localhost was lost (signal 9); 1 worker goes on." in note
    assert "a worker joined; 2 workers go on." in note
    assert "worker 1 on localhost was lost (signal 9); 1 worker goes on." in note
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


def _worker(run: "subprocess.Popen[bytes]", number: int) -> psutil.Process:
    """The process that trains as this worker."""
    (found,) = (process for process in psutil.Process(run.pid).children(recursive=True) if _is_worker(process, number))
    return found


def _is_worker(process: psutil.Process, number: int) -> bool:
    try:  # the last one, for there is a shell around it
        return process.environ().get(ADDRESS_VARIABLE, "").endswith(f":{number}") and not process.children()
    except psutil.Error:  # it has ended
        return False


def _num_begun(workplace: Path, size: int) -> int:
    """Worlds of so many workers that went on with the run."""
    return len(recorded(workplace, f"SELECT 1 FROM metrics WHERE key = 'workers' AND value = {size}"))


def _wait_until(condition: Callable[[], bool], run: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not condition():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
