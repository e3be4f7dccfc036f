"""What is of one framework alone; the rest is in test_trainer_contract.py."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
import torch

from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import load_signature
from rankline.training.models.base import embedded, keras_inputs
from rankline.training.models.config import StepConfig
from rankline.training.models.tabular import MLPConfig, TorchMLPConfig
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.training.trainers.torch import TorchTrainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source
from tests.factories.specs import scalar_spec
from tests.factories.training.fits import NUM_STEPS, Batch, fitted
from tests.oracles.tolerance import ROUNDING

CONFIG = TrainConfig(model=MLPConfig(hidden=(16, 8)), batch_size=100, learning_rate=0.01, table_lr_scale=1.0, seed=3)


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Batch]:
    return list(TensorFlowTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0))


def test_state_has_what_the_optimizer_keeps_of_a_column_called_as_the_rate(spec: FeatureSpec) -> None:
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
def test_step_takes_the_gradients_that_keras_takes(spec: FeatureSpec, batches: list[Batch], xla: bool) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_export_is_float32_whatever_the_precision(
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


TORCH = TrainConfig(model=TorchMLPConfig(), batch_size=100, seed=3)


def test_dropout_leaves_the_global_stream_alone(spec: FeatureSpec, prepared: Path) -> None:
    trainer = TorchTrainer(spec, TORCH.with_choices(dropout=0.5), num_steps=10)
    batch = next(iter(TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0)))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    trainer.step(*batch)
    assert torch.equal(torch.rand(3), expected)


def test_torch_trainer_refuses_what_only_tensorflow_does(spec: FeatureSpec) -> None:
    with pytest.raises(ConfigError, match="xla is TensorFlow's compiler"):
        TorchTrainer.check(spec, replace(TORCH, xla=True))
    with pytest.raises(ConfigError, match=r"one worker, got 2\. Use one worker or"):
        TorchTrainer.check(spec, TORCH, num_workers=2)
    converted = replace(spec, sources={"train": Source(files=("train/a.tfrecord",), num_rows=1, type="tfrecord")})
    with pytest.raises(ConfigError, match="a PyTorch model reads only parquet"):
        TorchTrainer.check(converted, TORCH)
    with pytest.raises(ConfigError, match="deterministic kernels are available only for TensorFlow models"):
        TorchTrainer.deterministic()


def no_network(_spec: FeatureSpec, _config: MLPConfig, _step: StepConfig) -> None: ...


def two_outputs_of_one_head(spec: FeatureSpec, config: MLPConfig, step: StepConfig) -> Any:
    inputs = keras_inputs(spec)
    return keras.Model(inputs, keras.layers.Dense(2)(embedded(inputs, spec, config, step)))


@pytest.mark.parametrize(
    ("function", "problem"),
    [(no_network, "returned a NoneType"), (two_outputs_of_one_head, r"widths \[2\], expected 1 for 'rating'")],
)
def test_network_of_a_user_must_fit_the_heads(
    spec: FeatureSpec, function: Callable[..., Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MLPConfig, "network", f"{__name__}:{function.__name__}")
    with pytest.raises(ConfigError, match=problem):
        TensorFlowTrainer(spec, CONFIG, NUM_STEPS)
