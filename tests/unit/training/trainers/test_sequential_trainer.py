"""DIN, DIEN and SIM in `TensorFlowTrainer` and in `train`."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework.config import is_op_determinism_enabled

from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.factories.training.fits import Batch, assert_goes_on_like_one_without_a_break, fitted
from tests.factories.training.sequences import batches_of, keras_batch, make_prepared, make_spec, make_table
from tests.factories.training.training_runs import history

pytestmark = pytest.mark.slow

DIN = DINConfig(hidden=(16, 8), embedding_dim=6, embedding_init=0.1)
DIEN = DIENConfig(**vars(DIN), short_history=2, gru_units=6, aux_hidden=(6,))
SIM = SIMConfig(**vars(DIEN), stage_one_hidden=(8,), num_searched=4)
CONFIG = TrainConfig(
    optimizer="lazy_adam",
    learning_rate=0.02,
    batch_size=100,
    epochs=3,
    seed=3,
    early_stopping_patience=0,
    weight_averaging=False,
)
KINDS = {
    "din": replace(CONFIG, model=DIN),
    "dien": replace(CONFIG, model=DIEN),
    "sim": replace(CONFIG, model=SIM),
    "sim, hard": replace(CONFIG, model=SIM).with_choices(search="hard"),
}
SPEC = make_spec()
all_kinds = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_prepared(tmp_path_factory.mktemp("sequences") / "prepared")


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Batch]:
    return batches_of(prepared)


@pytest.fixture(scope="module")
def learnt(batches: list[Batch]) -> Any:
    """Fits that have learnt for three epochs, each made when it is first asked for."""
    return cache(lambda name: fitted(TensorFlowTrainer, SPEC, KINDS[name], batches * 3, num_steps=36))


@all_kinds
def test_sequential_fit_learns_what_was_planted_and_scores_without_negatives(name: str, learnt: Any) -> None:
    trainer, rows = learnt(name), make_table(1000, seed=5)
    batch = keras_batch(rows, SPEC.for_scoring)
    assert not any("neg" in column for column in batch)
    assert exact_auc(rows["label"].to_numpy(), trainer.score(batch)) > 0.85
    assert trainer.score(keras_batch(rows.slice(0, 1), SPEC.for_scoring)).shape == (1,)
    # A batch of the training data, which has negatives, scores as well as without.
    np.testing.assert_array_equal(trainer.score(keras_batch(rows)), trainer.score(batch))


@pytest.mark.parametrize(
    "config",
    [
        KINDS["din"].with_choices(dropout=0.3, embedding_dropout=0.2, weight_averaging=True),
        KINDS["dien"].with_choices(dropout=0.3, precision="bfloat16", optimizer="rowwise_adagrad"),
        KINDS["sim"].with_choices(dropout=0.1),
    ],
    ids=["din", "dien, bfloat16", "sim"],
)
def test_resumed_run_ends_like_an_uninterrupted_one(config: TrainConfig, batches: list[Batch]) -> None:
    assert_goes_on_like_one_without_a_break(
        fitted(TensorFlowTrainer, SPEC, config, batches[:3]),
        batches[3:6],
        lambda: TensorFlowTrainer(SPEC, replace(config, seed=99), 10),
    )


STEP = KINDS["sim"].with_choices(
    recency=True,
    dot_product_features=True,
    l2_embedding=0.03,
    l2_linear=0.02,
    optimizer="sgd",
    learning_rate=0.1,
    num_searched=8,
)


@dataclass(frozen=True, kw_only=True)
class KerasStep:
    """What Keras makes of one batch, by an untouched fit of `STEP`."""

    trainer: TensorFlowTrainer
    before: list[Any]
    gradients: list[Any]
    loss: float
    added: float


@pytest.fixture(scope="module")
def by_keras(batches: list[Batch]) -> KerasStep:
    trainer = TensorFlowTrainer(SPEC, STEP, num_steps=1)
    inputs, labels = batches[0]
    with tf.GradientTape() as tape:
        losses = [
            tf.reduce_mean(keras.losses.binary_crossentropy(labels, output))
            for output in trainer.model(inputs, training=True)
        ]
        loss, added = tf.add_n(losses) / 2, tf.add_n(trainer.model.losses)
        objective = loss + added
    assert len(losses) == 2  # half of each: of the search, and of the score
    assert len(trainer.model.losses) == 6  # target, history, user, negatives, biases, and the auxiliary loss
    variables = trainer.model.trainable_variables
    return KerasStep(
        trainer=trainer,
        before=[variable.numpy() for variable in variables],
        gradients=[tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(objective, variables)],
        loss=float(loss),
        added=float(added),
    )


@pytest.mark.parametrize("xla", [False, True])
def test_step_takes_the_gradients_of_all_losses_that_keras_takes(
    by_keras: KerasStep, batches: list[Batch], xla: bool
) -> None:
    trainer = TensorFlowTrainer(SPEC, replace(STEP, xla=True), num_steps=1) if xla else by_keras.trainer
    variables = trainer.model.trainable_variables
    assert all(np.array_equal(variable, start) for variable, start in zip(variables, by_keras.before, strict=True))
    trainer.step(*batches[0])
    assert trainer.loss_sum() == pytest.approx(100 * by_keras.loss, rel=1e-5)
    assert trainer.added_sum() == pytest.approx(100 * by_keras.added, rel=1e-5)
    for variable, start, gradient in zip(variables, by_keras.before, by_keras.gradients, strict=True):
        np.testing.assert_allclose(variable, start - 0.1 * gradient, rtol=1e-4, atol=1e-6, err_msg=variable.name)


def test_step_in_float16_moves_the_weights_as_one_in_float32(by_keras: KerasStep, batches: list[Batch]) -> None:
    """Under float16 the reference's softmax underflows, and its search then finds fewer items."""
    trainer = TensorFlowTrainer(SPEC, replace(STEP, precision="float16"), num_steps=1)
    trainer.step(*batches[0])
    assert np.isfinite(trainer.loss_sum() + trainer.added_sum())
    after, before, gradients = (
        np.concatenate([np.ravel(array) for array in arrays])
        for arrays in (trainer.model.trainable_variables, by_keras.before, by_keras.gradients)
    )
    assert np.linalg.norm(after - before + 0.1 * gradients) <= 0.05 * np.linalg.norm(0.1 * gradients)


# Whole runs.


@pytest.fixture(scope="module")
def tracking(work: Path) -> TrackingConfig:
    return TrackingConfig(directory=work, experiment="sequences")


@pytest.fixture(scope="module")
def straight(prepared: Path, tracking: TrackingConfig, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    session = SessionConfig(evaluate_train=True, deterministic=True)
    output = tmp_path_factory.mktemp("models") / "sim"
    return train(prepared, output, RUN, session=session, tracking=tracking)


RUN = KINDS["sim"].with_choices(dropout=0.1)


def test_run_measures_both_splits_and_publishes_what_a_client_has(straight: TrainedModel) -> None:
    assert straight.metrics["valid_auc"] > 0.85
    assert straight.metrics["valid_gauc"] > 0.75
    assert list(history(straight, "train_auc")) == list(history(straight, "valid_auc")) == [1, 2, 3]
    assert list(history(straight, "train_gauc")) == [1, 2, 3]
    spec = FeatureSpec.read(straight.path)
    assert "negative_history" not in spec.channels
    assert [feature.name for feature in spec.categorical] == [f.name for f in SPEC.for_scoring.categorical]
    assert not is_op_determinism_enabled()
