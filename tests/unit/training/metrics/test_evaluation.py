from pathlib import Path

import numpy as np
import pytest

from training.config import TrainConfig
from training.metrics import quality
from training.metrics.evaluation import evaluate
from training.models.torch_mlp import TorchMLPConfig
from training.trainers.torch import TorchTrainer
from workflows.feature_spec import FeatureSpec


@pytest.mark.parametrize("group_by", ["userId", "not an input", None])
def test_a_split_is_measured_with_groups_where_there_are_some(group_by: str | None, prepared: Path) -> None:
    spec = FeatureSpec.read(prepared)
    trainer = TorchTrainer(spec, TrainConfig(model=TorchMLPConfig()), num_steps=1)
    valid = TorchTrainer.batches(prepared, spec, "valid", 300, shuffle=False, seed=0)
    scores = np.concatenate([trainer.score(inputs) for inputs, _ in valid])
    labels = np.concatenate([trainer.array(label) for _, label in valid])
    figures = evaluate(trainer, valid, spec.heads, group_by=group_by, split="validation")
    assert ("gauc" in figures) == (group_by == "userId")
    assert {name: figures[name] for name in figures if name != "gauc"} == pytest.approx(
        quality(labels, scores), abs=1e-12
    )
