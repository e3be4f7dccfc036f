import subprocess
import sys
from typing import Any

import pytest

from training.config import TrainConfig
from workflows.errors import ConfigError


@pytest.mark.parametrize(
    "option",
    [
        {"hidden": (128, 0)},
        {"embedding_dim_cap": 0},
        {"embedding_init": -0.1},
        {"dropout": 1.0},
        {"embedding_dropout": -0.1},
        {"l2_embedding": -1.0},
        {"weight_decay": float("nan")},
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
        {"learning_rate_decay": "steps"},
        {"batch_size": 0},
        {"epochs": 0},
        {"early_stopping_patience": -1},
        {"seed": -1},
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*, expected"):
        TrainConfig(**option)


def test_no_hidden_layer_is_a_choice() -> None:
    assert TrainConfig(hidden=()).hidden == ()


def test_importing_it_imports_no_tensorflow() -> None:
    check = "import sys, training.config; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
