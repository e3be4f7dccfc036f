"""Runs that are killed, stopped or spoilt, and go on: checkpoints of `train`, in both frameworks."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pyarrow as pa
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.distributed.config import WorkersConfig
from rankline.training.models.tabular import MLPConfig, TorchMLPConfig
from rankline.training.run.checkpoint import Checkpoint, Generation, checkpoint_path
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig, tracked_run
from rankline.workflows.core.errors import ArtifactError, ConfigError, DataError, RanklineError
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.storage.artifacts import publish
from tests.factories.training.outside_models import HidingConfig
from tests.factories.training.training_runs import Cut, CutError, assert_same_weights, history

BASE = TrainConfig(
    model=MLPConfig(hidden=(16,), dropout=0.2, embedding_dropout=0.1),
    batch_size=400,
    epochs=3,
    seed=3,
    optimizer="lazy_adam",
    learning_rate=0.01,
    learning_rate_decay="cosine",
    early_stopping_patience=2,
    epoch_holdout="valid",  # one fit; how two go on is in test_holdout.py
)
TORCH = TorchMLPConfig(hidden=(16,), dropout=0.2, embedding_dropout=0.1)
MODELS = {model.name: model for model in (BASE.model, TORCH)}
QUICK = replace(BASE, model=TORCH)
"""For what `train` does whatever the framework: a run of PyTorch takes a third of the time."""
CONFIGS = {"tensorflow": BASE, "torch": QUICK}
NUM_ROWS, STEPS_PER_EPOCH = 4_000, 10
ROWS = "4,000 training rows, 1,000 validation rows."
# One process imports both frameworks, and each run is a fork of it.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import tests.harness
import tensorflow, torch
import rankline.training.trainers.keras, rankline.training.trainers.torch
from tests.harness.process.frameworks import rewrite_graphs
from rankline.training.config.train import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.tracking import TrackingConfig
from rankline.training.run.train import train

class Killer:
    def update(self, done, total, note=""):
        if done >= {kill_at}:
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads({threads})
rewrite_graphs(tensorflow, False)  # as in this process
for output, config in json.loads({runs!r}).items():
    if not (pid := os.fork()):
        train(
            Path({prepared!r}), Path(output), TrainConfig.from_dict(config),
            session=SessionConfig(checkpoint_every={every}),
            tracking=TrackingConfig(directory=Path({work!r}), experiment="resume"), progress=Killer(),
        )
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
"""


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="resume")


@pytest.fixture(scope="module")
def straight(prepared: Path, tmp_path_factory: pytest.TempPathFactory, tracking: TrackingConfig) -> Any:
    """Models of whole runs, each trained when it is first asked for."""
    trained: dict[str, TrainedModel] = {}

    def model(name: str) -> TrainedModel:
        if name not in trained:
            trained[name] = train(
                prepared, tmp_path_factory.mktemp("straight") / "model", CONFIGS[name], tracking=tracking
            )
        return trained[name]

    return model


def assert_same_run(one: TrainedModel, other: TrainedModel) -> None:
    assert one.metrics == other.metrics
    assert_same_weights(one, other)


@pytest.fixture
def cut_off(prepared: Path, tracking: TrackingConfig) -> Any:
    """Trains until so many rows are done, and gives the checkpoint that is left."""

    def run(
        output: Path, config: TrainConfig, *, at: int, every: int, note: str = "epoch", resume: bool = False
    ) -> Checkpoint:
        session = SessionConfig(checkpoint_every=every, resume=resume)
        with pytest.raises(CutError):
            train(prepared, output, config, session=session, tracking=tracking, progress=Cut(at, note))
        assert not output.exists()
        return Checkpoint.load(checkpoint_path(output))

    return run


@pytest.fixture(scope="module")
def killed(prepared: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models that two runs would have made.

    Each was killed at the end of the second epoch, before it counts: the last checkpoint is within it, after step 14.
    """
    directory = tmp_path_factory.mktemp("killed")
    runs = {str(directory / name / "model"): CONFIGS[name].to_dict() for name in ("tensorflow", "torch")}
    code = KILLED.format(
        kill_at=2 * NUM_ROWS,
        prepared=str(prepared),
        runs=json.dumps(runs),
        every=7,
        work=str(work),
        threads=torch.get_num_threads(),  # which another test may have set, and which sums are rounded by
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=True)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorflow", "torch"])
def test_killed_run_resumes_to_the_same_model(
    name: str, prepared: Path, killed: Path, tracking: TrackingConfig, straight: Any
) -> None:
    output, config = killed / name / "model", CONFIGS[name]
    left = Checkpoint.load(checkpoint_path(output))
    assert (left.position.step, left.position.epoch, left.position.batch) == (14, 2, 4)
    assert mlflow.MlflowClient(tracking.uri).get_run(left.run_id).info.status == "RUNNING"

    session = SessionConfig(checkpoint_every=7, resume=True)
    model = train(prepared, output, config, session=session, tracking=tracking)
    assert_same_run(model, straight(name))
    assert list(output.parent.iterdir()) == [output]
    assert model.run_id == left.run_id
    run = mlflow.MlflowClient(tracking.uri).get_run(model.run_id)
    assert run.info.status == "FINISHED"
    assert len(run.inputs.dataset_inputs) == 2
    for figure in ("train_loss", "valid_auc", "valid_logloss"):
        assert history(model, figure) == history(straight(name), figure)
    assert list(history(model, "valid_auc")) == [1, 2, 3]


@pytest.mark.slow
def test_run_interrupted_after_an_epoch_and_before_publishing_resumes(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig, straight: Any, cut_off: Any
) -> None:
    output = tmp_path / "model"
    left = cut_off(output, QUICK, at=2 * NUM_ROWS, every=1_000)
    assert (left.position.step, left.position.batch) == (10, 0)
    left = cut_off(output, QUICK, at=3 * NUM_ROWS, every=1_000, note="best epoch", resume=True)
    assert (left.position.step, left.position.batch) == (30, 0)
    model = train(prepared, output, QUICK, session=SessionConfig(resume=True), tracking=tracking)
    assert_same_run(model, straight("torch"))
    assert not checkpoint_path(output).exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_generation_resumes_from_the_checkpoint_in_the_same_run(
    is_known: bool, prepared: Path, tmp_path: Path, tracking: TrackingConfig, straight: Any, cut_off: Any
) -> None:
    output, elastic = tmp_path / "model", WorkersConfig(min_workers=1, max_workers=1)
    left = cut_off(output, QUICK, at=2 * NUM_ROWS, every=7)
    generation = Generation(number=1, run_id=left.run_id, has_checkpoint=is_known, cause="worker 1 was lost.")
    model = train(prepared, output, QUICK, tracking=tracking, workers=elastic, generation=generation)
    assert_same_run(model, straight("torch"))
    run = mlflow.MlflowClient(tracking.uri).get_run(model.run_id)
    assert (model.run_id, run.info.status) == (left.run_id, "FINISHED")
    assert run.data.tags["mlflow.note.content"] == f"{ROWS} Step 14: worker 1 was lost. 1 worker continues."
    assert history(model, "workers") == {14: 1}
    assert not checkpoint_path(output).exists()


def test_generation_that_finds_no_checkpoint_begins_anew_in_the_same_run_unless_one_was_written(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig
) -> None:
    output, elastic, config = tmp_path / "model", WorkersConfig(min_workers=1, max_workers=1), replace(QUICK, epochs=1)
    with tracked_run(tracking) as log:
        pass
    generation = Generation(number=1, run_id=log.run_id, cause="worker 1 was lost.")
    with pytest.raises(ArtifactError, match="model-checkpoint does not exist"):
        gone = replace(generation, has_checkpoint=True)
        train(prepared, output, config, tracking=tracking, workers=elastic, generation=gone)
    model = train(prepared, output, config, tracking=tracking, workers=elastic, generation=generation)
    assert model.run_id == log.run_id


def test_stopped_run_says_how_to_resume_and_its_checkpoint_is_not_overwritten(
    prepared: Path, tmp_path: Path, tracking: TrackingConfig
) -> None:
    output, progress = tmp_path / "model", Cut(NUM_ROWS, error=KeyboardInterrupt)
    session = SessionConfig(checkpoint_every=4)
    with pytest.raises(KeyboardInterrupt):
        train(prepared, output, QUICK, session=session, tracking=tracking, progress=progress)
    left = Checkpoint.load(checkpoint_path(output))
    assert progress.notes[-1] == "stopped; --resume continues after step 8"
    assert mlflow.MlflowClient(tracking.uri).get_run(left.run_id).info.status == "KILLED"
    with pytest.raises(ConfigError, match="Continue with --resume, or delete the"):
        train(prepared, output, QUICK, session=session, tracking=tracking)
    train(prepared, output, replace(QUICK, epochs=1), tracking=tracking)  # writes none, so it is in nobody's way
    assert Checkpoint.load(checkpoint_path(output)).position.step == 8


@pytest.mark.parametrize("case", ["config", "data", "none", "other artifact"])
def test_resume_that_cannot_be_exact_is_refused_before_a_run_exists(
    case: str, prepared: Path, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig, cut_off: Any
) -> None:
    output, config, message = tmp_path / "model", QUICK, "there is no checkpoint to resume from"
    if case in ("config", "data"):
        cut_off(output, QUICK, at=NUM_ROWS, every=3)
    if case == "config":
        config, message = QUICK.with_choices(batch_size=32), "got batch_size 32, expected 400"
    if case == "data":
        prepared = new_prepared(tmp_path / "other", num_train=600)
        message = "the checkpoint was made from prepared data"
    if case == "other artifact":
        message = "contains ensemble"
        with publish(checkpoint_path(output), "ensemble") as staging:
            (staging / "note.txt").touch()
    unused = replace(tracking, directory=tmp_path / "work")
    with pytest.raises((ConfigError, ArtifactError), match=message):
        train(prepared, output, config, session=SessionConfig(resume=True), tracking=unused)
    assert not unused.directory.exists()


def with_nan(column: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_numpy().copy()
        values[700] = np.nan
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values))

    return change


@pytest.mark.parametrize("model", ["mlp", "torch_mlp"])
def test_loss_of_nan_names_its_batch_and_the_last_good_checkpoint(
    model: str, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig
) -> None:
    prepared = new_prepared(tmp_path / "prepared", change=with_nan("age"))
    # Without a ReLU, which may hide it.
    output, config = tmp_path / "model", replace(BASE, model=replace(MODELS[model], hidden=()))
    messages = []
    for resume in (False, True):  # what goes on exactly comes to the same end
        with pytest.raises(
            RanklineError, match="the training loss has been nan since step.*Lower the learning rate"
        ) as caught:
            session = SessionConfig(checkpoint_every=1, resume=resume)
            train(prepared, output, config, session=session, tracking=tracking)
        messages.append(str(caught.value))
    left = Checkpoint.load(checkpoint_path(output))
    step = left.position.step + 1
    assert messages[0] == messages[1]
    assert f"step {step} (epoch 1, batch {step} of 10)" in messages[0]
    assert f"the last good checkpoint: {checkpoint_path(output)}, step {step - 1}" in messages[0]
    assert mlflow.MlflowClient(tracking.uri).get_run(left.run_id).info.status == "FAILED"
    assert not output.exists()


def test_label_of_nan_names_its_file(new_prepared: Any, tmp_path: Path, tracking: TrackingConfig) -> None:
    prepared = new_prepared(tmp_path / "prepared", change=with_nan("rating"))
    with pytest.raises(DataError, match=r"parquet: column 'rating' contains nan, expected finite numbers"):
        train(prepared, tmp_path / "model", BASE, tracking=tracking)


@pytest.mark.parametrize("every", [0, 5])
def test_weights_that_are_no_numbers_stop_a_run_whose_loss_hides_them(
    every: int, new_prepared: Any, tmp_path: Path, tracking: TrackingConfig
) -> None:
    prepared = new_prepared(tmp_path / "prepared", change=with_nan("age"))
    with pytest.raises(RanklineError, match=r"weights are not finite after step \d+, expected finite numbers\. Lower"):
        session = SessionConfig(checkpoint_every=every)
        config = replace(BASE, model=HidingConfig(), epochs=1)
        train(prepared, tmp_path / "model", config, session=session, tracking=tracking)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(("model", "decay"), [("mlp", "linear"), ("torch_mlp", "none")])
def test_resume_with_another_learning_rate_applies_it_to_remaining_steps(
    model: str, decay: str, prepared: Path, tmp_path: Path, tracking: TrackingConfig, cut_off: Any
) -> None:
    config = BASE.with_choices(
        model=MODELS[model], epochs=2, learning_rate_decay=decay, weight_averaging=False, dropout=0.0
    )
    output = tmp_path / "model"
    left = cut_off(output, config, at=NUM_ROWS, every=3)
    session, slower = SessionConfig(checkpoint_every=1, resume=True), replace(config, learning_rate=1e-12)
    with pytest.raises(CutError):
        train(prepared, output, slower, session=session, tracking=tracking, progress=Cut(2 * NUM_ROWS))
    later = Checkpoint.load(checkpoint_path(output))
    assert (left.position.step, later.position.step) == (9, 19)
    # Statistics of batch normalisation follow the data, whatever the rate.
    learnt = [name for name in left.state if name.startswith("model/") and "running" not in name]
    assert any("embedding" in name or "table" in name for name in learnt)
    for name in learnt:
        if left.state[name].dtype == np.float32:
            np.testing.assert_allclose(later.state[name], left.state[name], atol=1e-6, err_msg=name)
    note = mlflow.MlflowClient(tracking.uri).get_run(left.run_id).data.tags["mlflow.note.content"]
    assert note == f"{ROWS} Since step 9 the learning rate is 1e-12."


@pytest.mark.parametrize(("model", "trace"), [("mlp", "*.xplane.pb"), ("torch_mlp", "*.pt.trace.json")])
def test_tensorboard_gets_curves_and_a_profile(
    model: str, trace: str, prepared: Path, tmp_path: Path, tracking: TrackingConfig
) -> None:
    session = SessionConfig(profile_steps=(12, 14))
    config = replace(BASE, model=MODELS[model], epochs=2)
    trained = train(prepared, tmp_path / "model", config, session=session, tracking=tracking)
    directory = tmp_path / "tensorboard" / trained.run_id
    assert list(directory.rglob(trace))
    events = EventAccumulator(str(directory)).Reload()
    assert [event.step for event in events.Scalars("valid_auc")] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert events.Scalars("valid_auc")[1].value == pytest.approx(history(trained, "valid_auc")[2])
    assert events.Scalars("learning_rate")[0].value < 0.01
    assert min(event.value for event in events.Scalars("train_samples_per_s")) > 0
    assert events.Scalars("train_loss")[-1].value < events.Scalars("train_loss")[0].value
