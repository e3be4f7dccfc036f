import subprocess
import sys
from typing import Any

import pytest

from training.config import SessionConfig, TrainConfig
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
        {"warmup_steps": -1},
        {"decay_start_step": -1},
        {"precision": "float64"},
        {"numbers_hidden": (0,)},
        {"cross_layers": 0},
        {"cross_rank": -1},
        {"embedding_dim": -1},
        {"batch_size": 0},
        {"epochs": 0},
        {"early_stopping_patience": -1},
        {"seed": -1},
    ],
)
def test_options_out_of_range_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*, expected"):
        TrainConfig(**option)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"profile_steps": (5,)}, "profile_steps"),
        ({"profile_steps": (9, 5)}, "profile_steps"),
        ({"profile_steps": (0, 5)}, "profile_steps"),
    ],
)
def test_choices_of_a_session_out_of_range_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*, expected"):
        SessionConfig(**options)
    assert SessionConfig(checkpoint_every=5, profile_steps=(5, 5)).profile_steps == (5, 5)


def test_no_hidden_layer_is_a_choice() -> None:
    assert TrainConfig(hidden=()).hidden == ()


def test_importing_it_imports_no_tensorflow() -> None:
    check = "import sys, training.config; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
