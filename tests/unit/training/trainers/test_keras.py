from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import load_signature
from rankline.training.models.mlp import MLPConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec
from tests.factories.specs import scalar_spec
from tests.factories.training.fits import NUM_STEPS, Batch, fitted, learn
from tests.oracles.tolerance import ROUNDING

CONFIG = TrainConfig(model=MLPConfig(hidden=(16, 8)), batch_size=100, learning_rate=0.01, table_lr_scale=1.0, seed=3)


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Batch]:
    return list(TensorFlowTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0))


def test_a_run_may_go_on_with_another_learning_rate(spec: FeatureSpec, batches: list[Batch]) -> None:
    saved = fitted(TensorFlowTrainer, spec, CONFIG, batches[:2]).state()
    moved = []
    for rate in (0.01, 0.001):
        trainer = TensorFlowTrainer(spec, replace(CONFIG, learning_rate=rate), num_steps=10)
        trainer.restore(saved)
        learn(trainer, batches[2:3])
        tables = (state["model/2/userId_embedding"] for state in (trainer.state(), saved))
        moved.append(np.abs(next(tables) - next(tables)).max())
    assert moved[1] == pytest.approx(0.1 * moved[0], rel=1e-3)


def test_a_state_has_what_the_optimizer_keeps_of_a_column_called_as_the_rate(spec: FeatureSpec) -> None:
    features = [replace(of, name="learning_rate") if of.name == "userId" else of for of in spec.features]
    channels = {**spec.channels, "categorical": ("learning_rate", *spec.channels["categorical"][1:])}
    renamed = replace(spec, features=tuple(features), channels=channels)
    expected, state = (TensorFlowTrainer(of, CONFIG, NUM_STEPS).state() for of in (spec, renamed))
    assert len(state) == len(expected)
    assert sum("learning_rate_embedding" in name for name in state) > 2


def test_tables_laid_out_for_one_worker_are_the_same_whatever_the_batch_of_all() -> None:
    spec = scalar_spec([(5, 4)] * 26, 0)
    of_one, of_two = (replace(CONFIG, batch_size=rows) for rows in (2048, 4096))
    expected = TensorFlowTrainer(spec, of_one, 1).state().keys()
    assert TensorFlowTrainer(spec, of_two, 1, laid_out_for=2048).state().keys() == expected
    assert TensorFlowTrainer(spec, of_two, 1).state().keys() != expected


@pytest.mark.parametrize("xla", [False, True])
def test_a_step_takes_the_gradients_that_keras_takes(spec: FeatureSpec, batches: list[Batch], xla: bool) -> None:
    config = CONFIG.with_choices(l2_embedding=0.3, l2_linear=0.2, optimizer="sgd", learning_rate=0.1, xla=xla)
    trainer = TensorFlowTrainer(spec, config, num_steps=1)
    inputs, labels = batches[0]
    with tf.GradientTape() as tape:
        scores = trainer.model(inputs, training=True)
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(labels, scores))
        objective = tf.add_n([loss, *trainer.model.losses])
    variables = trainer.model.trainable_variables
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(objective, variables)]
    before = [variable.numpy() for variable in variables]
    trainer.step(inputs, labels)
    assert len(trainer.model.losses) == 2
    assert trainer.loss_sum() == pytest.approx(100 * float(loss), rel=1e-6)
    for variable, start, gradient in zip(variables, before, gradients, strict=True):
        np.testing.assert_allclose(variable, start - 0.1 * gradient, rtol=1e-4, atol=1e-6, err_msg=variable.name)


def test_xla_changes_nothing_but_rounding(spec: FeatureSpec, batches: list[Batch]) -> None:
    config = CONFIG.with_choices(optimizer="sgd", learning_rate=0.1, l2_embedding=0.1)
    compiled, plain = (fitted(TensorFlowTrainer, spec, replace(config, xla=xla), batches[:5]) for xla in (True, False))
    for one, other in zip(compiled.weights(), plain.weights(), strict=True):
        np.testing.assert_allclose(one, other, **ROUNDING)
    small = {name: tensor[:7] for name, tensor in batches[6][0].items() if "genres" not in name}
    rows = int(tf.reduce_sum(batches[6][0]["genres__nnzs"][:7]))
    small["genres__values"] = batches[6][0]["genres__values"][:rows]
    small["genres__nnzs"] = batches[6][0]["genres__nnzs"][:7]
    np.testing.assert_allclose(compiled.score(small), plain.score(small), atol=1e-5)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_what_is_exported_is_float32_whatever_the_precision(
    spec: FeatureSpec, batches: list[Batch], precision: str, tmp_path: Path
) -> None:
    before = keras.mixed_precision.global_policy().name
    mixed = fitted(TensorFlowTrainer, spec, replace(CONFIG, precision=precision), batches[:4])
    assert keras.mixed_precision.global_policy().name == before
    mixed.export(tmp_path / "model")
    inputs, _ = batches[0]
    nnzs = inputs["genres__nnzs"].numpy()[:, 0]
    columns = {name: tf.reshape(inputs[name], [-1]) for name in ("userId", "movieId", "age", "genres__values")}
    columns["genres__offsets"] = tf.constant(np.append(0, np.cumsum(nnzs)), tf.int32)
    exported = load_signature(tmp_path / "model", "serving_default")(**columns)["score"]
    np.testing.assert_allclose(exported.numpy()[:, 0], mixed.score(inputs), **ROUNDING)


@pytest.mark.parametrize(("precision", "largest"), [("float16", 0.004), ("bfloat16", 0.02)])
def test_gradients_of_a_large_batch_add_up_in_mixed_precision_too(
    spec: FeatureSpec, prepared: Path, precision: str, largest: float
) -> None:
    whole = TensorFlowTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 4000, shuffle=False, seed=0)
    config = CONFIG.with_choices(optimizer="sgd", learning_rate=1.0, l2_embedding=0.01)
    moved = []
    for choice in (precision, "float32"):
        trainer = TensorFlowTrainer(spec, replace(config, precision=choice), 10)
        before = np.concatenate([weight.ravel() for weight in trainer.model.get_weights()])
        trainer.step(*next(iter(whole)))
        moved.append(np.concatenate([weight.ravel() for weight in trainer.model.get_weights()]) - before)
    assert np.linalg.norm(moved[0] - moved[1]) <= largest * np.linalg.norm(moved[1])
