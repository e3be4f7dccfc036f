import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.tfrecord import write_tfrecords
from rankline.training.models.tabular import MLPConfig
from rankline.training.run.checkpoint import Best, Checkpoint, Checkpoints, Position, Reader, checkpoint_path, plain
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from rankline.workflows.storage.artifacts import publish

CONFIG = TrainConfig(model=MLPConfig(hidden=(8, 4)))
POSITION = Position(step=14, epoch=2, batch=4, loss_sum=0.1)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8])
ARRAYS = arrays(DTYPES, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.integers(0, 9))


def checkpoint(**changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "config": plain(CONFIG),
        "fingerprint": "f" * 64,
        "run_id": "r",
        "position": POSITION,
        "num_batches": 10,
        "order": {"data": "d", "seed": 0},
        "best": Best(metrics={"valid_auc": 0.7, "epoch": 1.0}, weights=[np.ones(3, np.float32)]),
        "state": {"weights/0": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(14)},
    }
    return Checkpoint(**{**fields, **changes})


def written(directory: Path, **changes: Any) -> Path:
    checkpoint(**changes).write(directory / "model-checkpoint")
    return directory / "model-checkpoint"


@given(state=st.dictionaries(st.text(), ARRAYS, max_size=12), weights=st.lists(ARRAYS, max_size=3))
def test_checkpoint_is_read_as_it_was_written(state: dict[str, Any], weights: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        best = Best(metrics={"valid_auc": 0.1 + 0.2}, weights=weights)
        before = checkpoint(state=state, best=best)
        before.write(Path(directory) / "c")
        after = Checkpoint.load(Path(directory) / "c")
    for got, expected in [*zip(after.best.weights, weights, strict=True), *((after.state[n], state[n]) for n in state)]:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got, expected)
    assert list(after.state) == list(state)
    assert replace(after, state={}, best=Best()) == replace(before, state={}, best=Best())
    assert after.best.metrics == best.metrics


def test_arrays_are_mapped_and_may_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    array = Checkpoint.load(path).state["weights/0"]
    assert isinstance(array.base, np.memmap)
    array[:] = -1
    assert Checkpoint.load(path).state["weights/0"][1, 2] == 5


def checkpoints(output: Path, *, every: int = 7, last_step: int | None = None) -> Checkpoints:
    path = checkpoint_path(output)
    return Checkpoints(path, every, checkpoint(position=Position()), last_step=last_step)


def test_checkpoint_is_due_every_so_many_steps(tmp_path: Path) -> None:
    assert [step for step in range(1, 22) if checkpoints(tmp_path / "m").is_due(step)] == [7, 14, 21]
    assert not any(checkpoints(tmp_path / "m", every=0).is_due(step) for step in range(22))


def test_new_checkpoint_replaces_the_last_one(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path / "model")
    for step in (7, 14):
        kept.write(replace(POSITION, step=step), {}, Best(), {"w": np.full(4, step)})
        loaded = Checkpoint.load(tmp_path / "model-checkpoint")
        assert kept.last_step == loaded.position.step == loaded.state["w"][0] == step
    assert [path.name for path in tmp_path.iterdir()] == ["model-checkpoint"]


def test_run_takes_away_its_own_checkpoint_only(tmp_path: Path) -> None:
    path = written(tmp_path)
    checkpoints(tmp_path / "model").remove()
    assert path.exists()
    checkpoints(tmp_path / "model", last_step=14).remove()
    assert not path.exists()


def tfrecord_spec(prepared: Path, directory: Path) -> FeatureSpec:
    spec = FeatureSpec.read(prepared)
    source = spec.source("train")
    files = write_tfrecords([prepared / name for name in source.files], spec, directory / "train", prebatch=16)
    names = tuple(file.relative_to(directory).as_posix() for file in files)
    return replace(spec, sources={"train": Source(files=names, num_rows=source.num_rows, type="tfrecord")})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "tfrecord"])
@pytest.mark.parametrize(
    "position", [Position(epoch=1, batch=5), Position(epoch=3, batch=0), Position(epoch=2, batch=3)]
)
def test_reader_resumes_with_the_remaining_batches(
    kind: str, position: Position, prepared: Path, tmp_path: Path
) -> None:
    directory, spec = prepared, FeatureSpec.read(prepared)
    if kind == "tfrecord":
        directory, spec = tmp_path, tfrecord_spec(prepared, tmp_path)

    def reader() -> Reader:
        return Reader(TensorFlowTrainer.batches(directory, spec, "train", 600, shuffle=True, seed=3))

    def ages(epoch: Any) -> list[list[float]]:
        return [inputs["age"].numpy()[:, 0].tolist() for inputs, _ in epoch]

    straight, resumed = reader(), reader()
    epochs = [ages(straight) for _ in range(position.epoch + 1)]
    resumed.seek(position, json.loads(json.dumps(straight.order)))
    assert len(epochs[0]) == len(resumed) == 7
    assert ages(resumed) == epochs[position.epoch - 1][position.batch :]
    assert ages(resumed) == epochs[position.epoch]


def flip_a_byte(path: Path) -> None:
    file = path / "state" / "000000.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def change_details(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest["details"])
        (path / "manifest.json").write_text(json.dumps(manifest))

    return damage


def put_objects_in_it(path: Path) -> None:
    """Arrays that would run code, in an artifact that is whole."""
    details = json.loads((path / "manifest.json").read_text())["details"]
    rmtree(path)
    with publish(path, "training-checkpoint", made_from={"prepared-data": "f"}, details=details) as staging:
        for name in ("state", "best"):
            (staging / name).mkdir()
            np.save(staging / name / "000000.npy", np.array([object()]), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rmtree, "model-checkpoint does not exist"),
        (flip_a_byte, "checksum"),
        (lambda path: (path / "best" / "000000.npy").unlink(), "is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "cannot be read"),
        (change_details(lambda details: details.pop("position")), "position"),
        (change_details(lambda details: details["state"].pop()), "checkpoint cannot be read"),
        (put_objects_in_it, "checkpoint cannot be read"),
    ],
)
def test_damaged_checkpoint_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    path = written(tmp_path)
    damage(path)
    with pytest.raises(ArtifactError, match=f"{message}.*without --resume"):
        Checkpoint.load(path)


def test_checkpoint_belongs_to_its_configuration_and_data(tmp_path: Path) -> None:
    loaded, larger = Checkpoint.load(written(tmp_path)), replace(CONFIG, batch_size=2 * CONFIG.batch_size)
    loaded.check(replace(CONFIG, learning_rate=0.5), "f" * 64)
    loaded.check(larger, "f" * 64, free=("learning_rate", "batch_size"))
    with pytest.raises(ConfigError, match=f"got batch_size {larger.batch_size}, expected {CONFIG.batch_size}"):
        loaded.check(larger, "f" * 64)
    with pytest.raises(ConfigError, match=r"got hidden \[8\], expected \[8, 4\]; seed 3, expected 0\."):
        loaded.check(CONFIG.with_choices(hidden=(8,), seed=3), "f" * 64)
    with pytest.raises(ArtifactError, match="prepared data with fingerprint ffffffffffff, not gggggggggggg"):
        loaded.check(CONFIG, "g" * 64)
