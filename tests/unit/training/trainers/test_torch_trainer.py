from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

from training.config import TrainConfig
from training.models.torch_mlp import TorchMLPConfig
from training.torch_optimizers import OPTIMIZERS
from training.trainers.torch import TorchTrainer
from workflows.errors import ArtifactError, ConfigError
from workflows.feature_spec import FeatureSpec

CONFIG = TrainConfig(
    model=TorchMLPConfig(hidden=(16, 8)), batch_size=100, learning_rate=0.01, table_lr_scale=1.0, seed=3
)


@pytest.fixture(scope="module")
def batches(prepared: Path) -> list[Batch]:
    return list(TorchTrainer.batches(prepared, FeatureSpec.read(prepared), "train", 100, shuffle=True, seed=0))


@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name, "table_lr_scale": None} for name in OPTIMIZERS),
        {"dropout": 0.3, "embedding_dropout": 0.2, "learning_rate_decay": "quadratic", "warmup_steps": 2},
        {"precision": "float16", "dropout": 0.3, "weight_decay": 0.1},
        {"precision": "bfloat16", "dropout": 0.3, "weight_averaging": False},
    ],
    ids=str,
)
def test_a_run_that_goes_on_from_a_state_ends_like_one_without_a_break(
    spec: FeatureSpec, batches: list[Batch], options: dict[str, Any]
) -> None:
    config = CONFIG.with_choices(**options)
    assert_goes_on_like_one_without_a_break(
        fitted(TorchTrainer, spec, config, batches[:4]),
        batches[4:8],
        lambda: TorchTrainer(spec, replace(config, seed=99), NUM_STEPS),
        meanwhile=lambda: torch.rand(7),  # somebody else draws
    )


def test_a_state_is_a_copy_by_names_that_a_step_does_not_change(spec: FeatureSpec, batches: list[Batch]) -> None:
    trainer, other = fitted(TorchTrainer, spec, CONFIG, batches[:1]), TorchTrainer(spec, CONFIG, NUM_STEPS)
    assert_state_is_a_copy(trainer, batches[1:3], other, {"model", "optimizer", "average", "loss", "random"})


def test_penalties_are_summed_beside_the_loss(spec: FeatureSpec, batches: list[Batch]) -> None:
    plain, held = (
        fitted(TorchTrainer, spec, CONFIG.with_choices(l2_embedding=weight), batches[:1]) for weight in (0.0, 0.5)
    )
    assert plain.added_sum() == 0 < held.added_sum()
    assert plain.loss_sum() == held.loss_sum()


def test_a_state_of_another_model_is_refused_and_nothing_is_changed(spec: FeatureSpec, batches: list[Batch]) -> None:
    state = fitted(TorchTrainer, spec, CONFIG.with_choices(hidden=(16, 9)), batches[:1]).state()
    trainer = TorchTrainer(spec, CONFIG, num_steps=10)
    before = trainer.state()
    with pytest.raises(ArtifactError, match=r"of another model: it has model/layers\.4\.weight \(9, 16\) instead of "):
        trainer.restore(state)
    assert_same(trainer.state(), before)
    with pytest.raises(ArtifactError, match="it lacks optimizer/0/0/sum"):
        trainer.restore(fitted(TorchTrainer, spec, replace(CONFIG, optimizer="lazy_adam"), batches[:1]).state())


def test_dropout_leaves_the_global_stream_alone(spec: FeatureSpec, batches: list[Batch]) -> None:
    trainer = TorchTrainer(spec, CONFIG.with_choices(dropout=0.5), num_steps=10)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    learn(trainer, batches[:1])
    assert torch.equal(torch.rand(3), expected)


def test_the_step_is_kept_at_which_the_loss_was_no_number_first(spec: FeatureSpec, batches: list[Batch]) -> None:
    trainer = fitted(TorchTrainer, spec, CONFIG, batches[:3])
    assert trainer.diverged_at() is None
    inputs, labels = batches[3]
    trainer.step(inputs, labels * torch.nan)
    learn(trainer, batches[4:6])
    assert trainer.diverged_at() == 4


def test_parameters_are_counted_in_tables_and_others(spec: FeatureSpec) -> None:
    tables, linear = 60 * 16 + 40 * 12 + 8 * 4, 60 + 40 + 8
    norms = 2 * (1 + 16 + 8)
    dense = 33 * 16 + 16 + 16 * 8 + 8 + 8 + 1 + norms
    assert TorchTrainer(spec, CONFIG.with_choices(linear_terms=False), 1).num_parameters() == (tables, dense)
    assert TorchTrainer(spec, CONFIG, 1).num_parameters() == (tables + linear, dense)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_learns_as_well_on_weights_that_stay_float32(
    spec: FeatureSpec, batches: list[Batch], precision: str
) -> None:
    config = CONFIG.with_choices(learning_rate=0.003, table_lr_scale=None, l2_embedding=1e-4)
    mixed, single = (
        fitted(TorchTrainer, spec, replace(config, precision=p), batches * 2, 80) for p in (precision, "float32")
    )
    assert {weight.dtype for weight in mixed.model.parameters()} == {torch.float32}
    assert_score_alike(mixed, single, batches, np.concatenate([label.cpu().numpy() for _, label in batches]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_whose_gradients_overflow_leaves_weights_and_optimizer_as_they_were(
    spec: FeatureSpec, batches: list[Batch], name: str
) -> None:
    config = replace(CONFIG, precision="float16", optimizer=name, table_lr_scale=None, weight_decay=0.1)
    trainer = fitted(TorchTrainer, spec, config, batches[:2])
    before = trainer.state()
    assert before["optimizer/good_steps"] == 2
    trainer.restore({**before, "optimizer/scale": np.float64(2.0**120)})
    learn(trainer, batches[2:3])
    after = trainer.state()
    weights = [f"model/{entry}" for entry, _ in trainer.model.named_parameters()]
    for entry in [*weights, *(name for name in before if name.startswith("optimizer/"))]:
        if entry not in ("optimizer/scale", "optimizer/good_steps"):
            np.testing.assert_array_equal(after[entry], before[entry], err_msg=entry)
    assert after["optimizer/scale"] == 2.0**119
    assert after["optimizer/good_steps"] == 0
    assert trainer.diverged_at() is None
    trainer.restore(before)
    learn(trainer, batches[2:3])
    assert any(np.any(trainer.state()[entry] != before[entry]) for entry in weights)


def test_xla_is_refused(spec: FeatureSpec) -> None:
    with pytest.raises(ConfigError, match="xla is TensorFlow's compiler, and torch_mlp is a PyTorch model"):
        TorchTrainer.check(spec, replace(CONFIG, xla=True))


def test_several_workers_are_refused(spec: FeatureSpec) -> None:
    with pytest.raises(ConfigError, match="torch_mlp is a PyTorch model, which trains on one worker, got 2 workers"):
        TorchTrainer.check(spec, CONFIG, num_workers=2)
