from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from rankline.compat.sim.batches import CachedBatches, repeated
from rankline.training.data.loader.tfrecord import TFRecordLoader, write_tfrecords
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.run.checkpoint import Position, Reader
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec
from tests.unit.training.conftest import make_prepared

NUM_ROWS, BATCH_SIZE = 4000, 700


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("ratings") / "prepared")


def loader(prepared: Path, *, shuffle: bool = True) -> Any:
    return tensorflow_loader(prepared, FeatureSpec.read(prepared), "train", BATCH_SIZE, shuffle=shuffle, seed=5)


def ages(batches: Any) -> list[list[float]]:
    return [inputs["age"].numpy()[:, 0].tolist() for inputs, _ in batches]


def test_epoch_of_several_passes_has_the_orders_of_as_many_epochs(prepared: Path) -> None:
    plain, twice = loader(prepared), repeated(loader(prepared), 2)
    assert (twice.num_rows, len(twice)) == (2 * NUM_ROWS, 2 * len(plain))
    epochs = [ages(plain) for _ in range(4)]
    assert ages(twice) == epochs[0] + epochs[1]
    assert ages(twice) == epochs[2] + epochs[3]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("batch", [0, 1, 5, 6, 7, 11])
def test_epoch_of_several_passes_goes_on_at_any_batch(prepared: Path, batch: int) -> None:
    straight = repeated(loader(prepared), 2)
    expected = [*ages(straight), *ages(straight)][12 + batch :] + ages(straight)
    reader = Reader(repeated(loader(prepared), 2))
    reader.seek(Position(step=12 + batch, epoch=2, batch=batch), reader.order)
    assert ages(reader) + ages(reader) == expected


def test_position_that_was_saved_while_reading_is_the_one_to_go_on_at(prepared: Path) -> None:
    straight: Any = repeated(loader(prepared), 3)
    passing = iter(straight)
    for _ in range(8):
        next(passing)
    state, left = straight.state_dict(), ages(passing)
    resumed: Any = repeated(loader(prepared), 3)
    resumed.load_state_dict(state)
    assert ages(resumed) == left
    with pytest.raises(ConfigError, match="the saved position is of 3 passes per epoch, got 2"):
        repeated(loader(prepared), 2).load_state_dict(state)  # type: ignore[attr-defined]


def test_loader_without_a_position_is_read_again_up_to_it(prepared: Path, tmp_path: Path) -> None:
    spec = FeatureSpec.read(prepared)
    files = write_tfrecords([prepared / "train" / "part_0.parquet"], spec, tmp_path)

    def twice() -> Any:
        return repeated(TFRecordLoader(files, spec, BATCH_SIZE, num_rows=NUM_ROWS // 2, seed=5), 2)

    straight = twice()
    first, second = ages(straight), ages(straight)
    assert first != second
    reader = Reader(twice())
    assert reader.order == {}
    reader.seek(Position(step=10, epoch=2, batch=4), {})
    assert ages(reader) == second[4:]


class Counted:
    """Some batches, and how often they were read from the start."""

    def __init__(self) -> None:
        self.num_rows, self.passes = 6, 0
        self._batches = [({"x": tf.fill((2, 1), float(number))}, tf.zeros((2, 1))) for number in range(3)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self._batches)


NUM_BYTES = 3 * 2 * 2 * 4


def first_values(batches: Any) -> list[float]:
    return [float(inputs["x"][0, 0]) for inputs, _ in batches]


def test_batches_that_fit_are_read_once() -> None:
    counted = Counted()
    kept = CachedBatches(counted, max_bytes=NUM_BYTES)
    assert (kept.num_rows, len(kept)) == (6, 3)
    assert [first_values(kept) for _ in range(3)] == [[0.0, 1.0, 2.0]] * 3
    assert counted.passes == 1


def test_batches_that_do_not_fit_are_read_in_each_pass() -> None:
    counted = Counted()
    kept = CachedBatches(counted, max_bytes=NUM_BYTES - 1)
    assert [first_values(kept) for _ in range(3)] == [[0.0, 1.0, 2.0]] * 3
    assert counted.passes == 3


def test_pass_that_is_left_early_keeps_nothing() -> None:
    counted = Counted()
    kept = CachedBatches(counted)
    assert float(next(iter(kept))[0]["x"][0, 0]) == 0.0
    assert first_values(kept) == first_values(kept) == [0.0, 1.0, 2.0]
    assert counted.passes == 2
