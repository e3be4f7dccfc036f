"""What is of PyTorch alone; the rest is in test_trainer_contract.py."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rankline.training.config.train import TrainConfig
from rankline.training.models.torch_mlp import TorchMLPConfig
from rankline.training.trainers.torch import TorchTrainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec, Source

CONFIG = TrainConfig(model=TorchMLPConfig(), batch_size=100, seed=3)


def test_dropout_leaves_the_global_stream_alone(spec: FeatureSpec, prepared: Path) -> None:
    trainer = TorchTrainer(spec, CONFIG.with_choices(dropout=0.5), num_steps=10)
    batch = next(iter(TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0)))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    trainer.step(*batch)
    assert torch.equal(torch.rand(3), expected)


def test_the_average_is_scored_and_kept_with_its_running_statistics(spec: FeatureSpec, prepared: Path) -> None:
    trainer = TorchTrainer(spec, CONFIG, num_steps=100)
    batches = TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0)
    for inputs, labels in batches:
        trainer.step(inputs, labels)
        trainer.average()
    own = trainer.score(inputs)
    with trainer.averaged():
        averaged = trainer.score(inputs)
    np.testing.assert_array_equal(trainer.score(inputs), own)
    assert np.abs(averaged - own).max() > 1e-4
    trainer.set_weights(trainer.weights())
    np.testing.assert_array_equal(trainer.score(inputs), averaged)


def test_the_loss_is_the_sum_over_the_rows_without_penalties(spec: FeatureSpec, prepared: Path) -> None:
    config = TrainConfig(model=TorchMLPConfig(l2_embedding=100.0, embedding_init=0.5))
    trainer = TorchTrainer(spec, config, num_steps=100)
    batches = TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 500, shuffle=True, seed=0)
    inputs, labels = next(iter(batches))
    trainer.model.train()
    logit = trainer.model(inputs).logit.detach()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, labels, reduction="sum")
    trainer.step(inputs, labels)
    assert trainer.loss_sum() == pytest.approx(float(expected), rel=1e-5)


def test_what_it_cannot_do_is_refused(spec: FeatureSpec) -> None:
    with pytest.raises(ConfigError, match="xla is TensorFlow's compiler, and torch_mlp is a PyTorch model"):
        TorchTrainer.check(spec, replace(CONFIG, xla=True))
    with pytest.raises(ConfigError, match="torch_mlp is a PyTorch model, which trains on one worker, got 2 workers"):
        TorchTrainer.check(spec, CONFIG, num_workers=2)
    converted = replace(spec, sources={"train": Source(files=("train/a.tfrecord",), num_rows=1, type="tfrecord")})
    with pytest.raises(ConfigError, match="a PyTorch model reads parquet only"):
        TorchTrainer.check(converted, CONFIG)
