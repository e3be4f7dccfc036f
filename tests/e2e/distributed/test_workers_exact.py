"""Two workers learn what one process learns from the same batches. Both are started once for all tests."""

import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest

from rankline.training.distributed.communicator import SOLO
from rankline.training.evaluation import quality
from rankline.training.export.saved_model import load_signature
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec
from tests.e2e.distributed.exact_worker import CASES, RUN, fitted
from tests.e2e.distributed.learnt_alike import FLOAT32, HALF, assert_close, assert_equal
from tests.e2e.distributed.started_workers import Ended, ended, started
from tests.factories.training import sequences as sequence_rows
from tests.factories.training.ratings import make_prepared

NUM_TRAIN, NUM_VALID = 1003, 501
HALVES = ("fp16", "float16")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data; after `workers`, what they made of it."""
    directory = tmp_path_factory.mktemp("workers")
    make_prepared(directory / "prepared", num_train=NUM_TRAIN * 2, num_valid=NUM_VALID * 2)
    sequence_rows.make_prepared(directory / "histories")
    return directory


@pytest.fixture(scope="module")
def workers(directory: Path) -> list[Ended]:
    with started(Path(__file__).with_name("exact_worker.py"), directory) as processes:
        return ended(processes)


@pytest.fixture(scope="module")
def found(workers: list[Ended], directory: Path) -> list[dict[str, Any]]:
    files = [directory / f"found-{rank}.json" for rank in range(2)]
    assert all(path.exists() for path in files), "\n".join(worker.output for worker in workers)
    return [json.loads(path.read_text()) for path in files]


@pytest.mark.parametrize("name", CASES)
def test_workers_learn_what_one_process_learns(name: str, directory: Path, workers: list[Ended]) -> None:
    expected = fitted(directory, name, SOLO)
    assert {group.split("/")[0] for group in expected["after"]} >= {"model", "optimizer", "average", "loss"}
    for stage, state in expected.items():
        found = []
        for rank in range(2):
            path = directory / f"{name}-{stage}-{rank}.npz"
            assert path.exists(), workers[rank].output
            found.append(dict(np.load(path)))
        np.testing.assert_equal(found[0], found[1])
        if stage == "after":
            assert_close(found[0], state, expected["before"], HALF if name in HALVES else FLOAT32)
        else:
            assert_equal(found[0], state)


def test_step_whose_gradients_overflow_on_one_worker_is_left_out_by_both(directory: Path, found: Any) -> None:
    for rank in range(2):
        state = np.load(directory / f"float16-after-{rank}.npz")
        assert state["loss_scale/0/scale"] == 2.0**14  # halved once
        assert state["optimizer/0/iteration"] == 5


def test_metrics_are_those_of_all_rows(directory: Path, found: Any) -> None:
    assert found[0]["metrics"] == found[1]["metrics"]
    spec = FeatureSpec.read(directory / "prepared")
    (inputs, labels), *rest = TensorFlowTrainer.batches(
        directory / "prepared", spec, "valid", 2 * NUM_VALID, shuffle=False, seed=0
    )
    assert not rest
    users = inputs["userId"].numpy()[:, 0]
    signature = load_signature(directory / "model" / "model.savedmodel", "serving_padded")
    lengths, values = inputs["genres__nnzs"].numpy()[:, 0], inputs["genres__values"].numpy()[:, 0]
    padded = np.zeros((len(lengths), lengths.max()), np.int64)
    padded[np.arange(lengths.max()) < lengths[:, None]] = values
    scores = signature(**{**inputs, "genres__values": padded})["score"].numpy()[:, 0]
    for name, figure in quality(labels.numpy()[:, 0], scores, users).items():
        assert found[0]["metrics"][f"valid_{name}"] == pytest.approx(figure, abs=1e-4), (
            name
        )  # a pair of close scores may swap


def test_worker_0_alone_records_and_reports(directory: Path, found: Any) -> None:
    assert found[0]["reports"] > 0
    assert found[1]["reports"] == 0
    assert found[0]["run_id"] == found[1]["run_id"]
    uri = f"sqlite:///{directory / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("two").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_id == found[0]["run_id"]
    # Those of the whole run: the rows of both, and the rate that goes with them.
    assert (run.data.params["batch_size"], run.data.params["learning_rate"]) == (str(2 * RUN.batch_size), "0.02")
    assert run.data.params["workers.workers"] == "2"
    assert "valid_auc" in run.data.metrics


def test_run_of_two_workers_resumes_from_a_checkpoint_of_worker_0(directory: Path, found: Any) -> None:
    assert found[0]["resumed_run_id"] == found[0]["run_id"]
    # Dropout goes on in other streams on worker 1 only where a batch of it had a row less.
    assert found[0]["resumed_metrics"]["valid_auc"] == pytest.approx(found[0]["metrics"]["valid_auc"], abs=0.01)
    assert found[0]["resumed_metrics"]["epoch"] == 2.0


def test_workers_with_other_options_are_refused_by_all_in_the_same_words(found: Any) -> None:
    assert found[0]["difference"] == found[1]["difference"]
    assert "worker 1 has learning_rate 0.02, but worker 0 has 0.01" in found[0]["difference"]


def test_worker_0_reports_the_error_of_another(workers: list[Ended]) -> None:
    assert [worker.exit_code for worker in workers] == [1, 1]
    assert "WorkersError: worker 1: rows are spoilt." in workers[0].output
    assert "DataError: rows are spoilt." in workers[1].output
