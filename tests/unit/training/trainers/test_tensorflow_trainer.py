from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from fitting import (
    NUM_STEPS,
    Batch,
    assert_goes_on_like_one_without_a_break,
    assert_same,
    assert_score_alike,
    assert_state_is_a_copy,
    fitted,
    learn,
)

from tests.support.rounding import ROUNDING
from tests.support.specs import scalar_spec
from training.config import TrainConfig
from training.models.mlp import MLPConfig
from training.optimizers import OPTIMIZERS
from training.saved_model import load_signature
from training.trainers.tensorflow import TensorFlowTrainer
from workflows.errors import ArtifactError
from workflows.feature_spec import FeatureSpec

CONFIG = TrainConfig(model=MLPConfig(hidden=(16, 8)), batch_size=100, learning_rate=0.01, table_lr_scale=1.0, seed=3)


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Batch]:
    return list(TensorFlowTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0))


@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name, "table_lr_scale": None} for name in OPTIMIZERS),
        {"dropout": 0.3, "embedding_dropout": 0.2, "learning_rate_decay": "quadratic", "warmup_steps": 2},
        {"precision": "float16", "dropout": 0.3, "weight_decay": 0.1},
        {"precision": "bfloat16", "xla": True, "dropout": 0.3, "weight_averaging": False},
    ],
    ids=str,
)
def test_a_run_that_goes_on_from_a_state_ends_like_one_without_a_break(
    spec: FeatureSpec, batches: list[Batch], options: dict[str, Any]
) -> None:
    config = CONFIG.with_choices(**options)
    assert_goes_on_like_one_without_a_break(
        fitted(TensorFlowTrainer, spec, config, batches[:4]),
        batches[4:8],
        lambda: TensorFlowTrainer(spec, replace(config, seed=99), NUM_STEPS),
    )


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


def test_a_state_is_a_copy_by_names_that_no_other_model_changes(spec: FeatureSpec, batches: list[Batch]) -> None:
    trainer, other = fitted(TensorFlowTrainer, spec, CONFIG, batches[:1]), TensorFlowTrainer(spec, CONFIG, NUM_STEPS)
    assert_state_is_a_copy(trainer, batches[1:3], other, {"model", "optimizer", "average", "loss"})


def test_a_state_has_what_the_optimizer_keeps_of_a_column_called_as_the_rate(spec: FeatureSpec) -> None:
    features = [replace(of, name="learning_rate") if of.name == "userId" else of for of in spec.features]
    channels = {**spec.channels, "categorical": ("learning_rate", *spec.channels["categorical"][1:])}
    renamed = replace(spec, features=tuple(features), channels=channels)
    expected, state = (TensorFlowTrainer(of, CONFIG, NUM_STEPS).state() for of in (spec, renamed))
    assert len(state) == len(expected)
    assert sum("learning_rate_embedding" in name for name in state) > 2


def test_a_state_of_another_model_is_refused_and_nothing_is_changed(spec: FeatureSpec, batches: list[Batch]) -> None:
    state = fitted(TensorFlowTrainer, spec, CONFIG.with_choices(hidden=(16, 9)), batches[:1]).state()
    trainer = TensorFlowTrainer(spec, CONFIG, num_steps=10)
    before = trainer.state()
    with pytest.raises(
        ArtifactError, match=r"of another model: it has model/\d+/kernel \(16, 9\) instead of \(16, 8\)"
    ):
        trainer.restore(state)
    assert_same(trainer.state(), before)
    with pytest.raises(ArtifactError, match="it lacks average/"):
        trainer.restore(fitted(TensorFlowTrainer, spec, replace(CONFIG, weight_averaging=False), batches[:1]).state())


def test_the_step_is_kept_at_which_the_loss_was_no_number_first(spec: FeatureSpec, batches: list[Batch]) -> None:
    trainer = fitted(TensorFlowTrainer, spec, CONFIG, batches[:3])
    assert trainer.diverged_at() is None
    inputs, labels = batches[3]
    trainer.step(inputs, labels * np.nan)
    learn(trainer, batches[4:6])
    assert trainer.diverged_at() == 4
    again = TensorFlowTrainer(spec, CONFIG, num_steps=10)
    again.restore(trainer.state())
    assert again.diverged_at() == 4


def test_parameters_are_counted_in_tables_and_others(spec: FeatureSpec) -> None:
    tables = 60 * 16 + 40 * 12 + 8 * 4
    dense = 33 * 16 + 16 + 16 * 8 + 8 + 8 + 1
    linear = 60 + 40 + 8
    assert TensorFlowTrainer(spec, CONFIG.with_choices(linear_terms=False), 1).num_parameters() == (tables, dense)
    assert TensorFlowTrainer(spec, CONFIG, 1).num_parameters() == (tables + linear, dense)


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
def test_mixed_precision_learns_as_well_on_weights_that_stay_float32(
    spec: FeatureSpec, batches: list[Batch], precision: str, tmp_path: Path
) -> None:
    before = keras.mixed_precision.global_policy().name
    config = CONFIG.with_choices(learning_rate=0.003, table_lr_scale=None, l2_embedding=1e-4)
    mixed, single = (
        fitted(TensorFlowTrainer, spec, replace(config, precision=p), batches * 2, 80) for p in (precision, "float32")
    )
    assert keras.mixed_precision.global_policy().name == before
    assert {array.dtype.name for name, array in mixed.state().items() if name.startswith("model/")} == {"float32"}
    assert_score_alike(mixed, single, batches, np.concatenate([label.numpy()[:, 0] for _, label in batches]))
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


@pytest.mark.parametrize("name", ["adam", "rowwise_adagrad"])
def test_a_step_whose_gradients_overflow_leaves_everything_as_it_was(
    spec: FeatureSpec, batches: list[Batch], name: str
) -> None:
    config = replace(CONFIG, precision="float16", optimizer=name, table_lr_scale=None, weight_decay=0.1)
    trainer = fitted(TensorFlowTrainer, spec, config, batches[:2])
    before = trainer.state()
    assert before["loss_scale/1/good_steps"] == 2
    trainer.restore({**before, "loss_scale/0/scale": np.float32(2.0**40)})
    learn(trainer, batches[2:3])
    after = trainer.state()
    for entry in before:
        if not entry.startswith("loss"):
            np.testing.assert_array_equal(after[entry], before[entry], err_msg=entry)
    assert after["loss_scale/0/scale"] == 2.0**39
    assert after["loss_scale/1/good_steps"] == 0
    assert trainer.diverged_at() is None
    trainer.restore(before)
    learn(trainer, batches[2:3])
    assert any(np.any(trainer.state()[entry] != before[entry]) for entry in before if entry.startswith("model/"))
