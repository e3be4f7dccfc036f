"""Two workers with half of each table learn what one process learns. Both are started once for all tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.learnt_alike import FLOAT32, HALF, assert_close, assert_equal
from tests.system.split_worker import CASES, fitted
from tests.system.started_workers import Ended, ended, started
from tests.unit.training import sequence_rows
from tests.unit.training.conftest import make_prepared
from training.checkpoints import Checkpoint
from training.metrics import quality
from training.saved_model import load_signature
from training.trainers.tensorflow import TensorFlowTrainer
from training.world import SOLO
from workflows.feature_spec import FeatureSpec

NUM_TRAIN, NUM_VALID = 2006, 1002


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data; after `workers`, what they made of it."""
    directory = tmp_path_factory.mktemp("split")
    make_prepared(directory / "prepared", num_train=NUM_TRAIN, num_valid=NUM_VALID)
    sequence_rows.make_prepared(directory / "histories")
    return directory


@pytest.fixture(scope="module")
def workers(directory: Path) -> list[Ended]:
    with started(Path(__file__).with_name("split_worker.py"), directory) as processes:
        return ended(processes)


@pytest.fixture(scope="module")
def found(workers: list[Ended], directory: Path) -> list[dict[str, Any]]:
    assert [worker.exit_code for worker in workers] == [0, 0], "\n".join(worker.output for worker in workers)
    return [json.loads((directory / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_split_tables_learn_what_one_process_learns_from_the_same_global_batches(
    name: str, directory: Path, found: Any
) -> None:
    expected, _ = fitted(directory, name, SOLO)
    for stage, state in expected.items():
        found_states = [dict(np.load(directory / f"{name}-{stage}-{rank}.npz")) for rank in range(2)]
        np.testing.assert_equal(*found_states)
        if stage == "after":
            assert_close(found_states[0], state, expected["before"], HALF if name == "float16" else FLOAT32)
        else:
            assert_equal(found_states[0], state)


@pytest.mark.parametrize("name", CASES)
def test_each_worker_has_half_of_the_rows_of_each_table(name: str, directory: Path, found: Any) -> None:
    sizes = [np.load(directory / f"{name}-num_rows-{rank}.npy") for rank in range(2)]
    numbers = {array.shape[0] for array in np.load(directory / f"{name}-after-0.npz").values() if array.ndim}
    assert len(sizes[0]) >= 4
    for first, second in zip(*sizes, strict=True):
        assert first - second in (0, 1)
        assert first + second in numbers


def test_a_step_that_overflows_on_one_worker_is_left_out_by_both(directory: Path, found: Any) -> None:
    state = np.load(directory / "float16-after-1.npz")
    assert state["loss_scale/0/scale"] == 2.0**14  # halved once
    assert state["optimizer/0/iteration"] == 4


def test_the_exported_model_has_whole_tables_and_the_metrics_of_the_run(directory: Path, found: Any) -> None:
    assert found[0]["metrics"] == found[1]["metrics"]
    spec = FeatureSpec.read(directory / "prepared")
    ((inputs, labels),) = TensorFlowTrainer.batches(
        directory / "prepared", spec, "valid", NUM_VALID, shuffle=False, seed=0
    )
    signature = load_signature(directory / "model" / "model.savedmodel", "serving_padded")
    lengths, values = inputs["genres__nnzs"].numpy()[:, 0], inputs["genres__values"].numpy()[:, 0]
    padded = np.zeros((len(lengths), lengths.max()), np.int64)
    padded[np.arange(lengths.max()) < lengths[:, None]] = values
    scores = signature(**{**inputs, "genres__values": padded})["score"].numpy()[:, 0]
    for name, figure in quality(labels.numpy()[:, 0], scores, inputs["userId"].numpy()[:, 0]).items():
        assert found[0]["metrics"][f"valid_{name}"] == pytest.approx(figure, abs=1e-4), (
            name
        )  # a pair of close scores may swap


def test_a_checkpoint_has_whole_tables_from_which_any_number_of_workers_goes_on(directory: Path, found: Any) -> None:
    kept = Checkpoint.load(directory / "copied")
    shapes = [array.shape for array in kept.state.values()]
    assert shapes.count((60, 16)) == 2  # the users' table and its average
    assert shapes.count((60, 1)) == 4  # and biases, their average, and what the optimizer remembers of either
    assert (60, 16) in [array.shape for array in kept.best.weights]
    for name, figure in found[0]["resumed"].items():
        assert found[0]["metrics"][name] == pytest.approx(figure, rel=1e-3), name
