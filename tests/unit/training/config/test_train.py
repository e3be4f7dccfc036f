import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest

from rankline.training.config.session import SessionConfig
from rankline.training.config.train import TrainConfig
from rankline.training.distributed.config import WorkersConfig
from rankline.training.models import MODELS
from rankline.training.models.config import ModelConfig
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize(
    "option",
    [
        {"weight_decay": float("nan")},
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
        {"learning_rate_decay": "steps"},
        {"warmup_steps": -1},
        {"decay_start_step": -1},
        {"precision": "float64"},
        {"batch_size": 0},
        {"epochs": 0},
        {"early_stopping_patience": -1},
        {"epoch_holdout": "train"},
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
        ({"device": "tpu"}, "device"),
    ],
)
def test_choices_of_a_session_out_of_range_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*, expected"):
        SessionConfig(**options)
    assert SessionConfig(checkpoint_every=5, profile_steps=(5, 5)).profile_steps == (5, 5)


@pytest.mark.parametrize(
    ("options", "size", "batch_size", "learning_rate"),
    [
        ({}, 1, 100, 0.01),
        ({}, 4, 400, 0.01),
        ({"scale_learning_rate": "linear"}, 4, 400, 0.04),
        ({"scale_learning_rate": "sqrt"}, 4, 400, 0.02),
        ({"scale_learning_rate": "linear", "global_batch_size": 100}, 4, 100, 0.01),
        ({"scale_learning_rate": "linear", "global_batch_size": 50}, 1, 50, 0.005),
    ],
)
def test_a_run_of_several_workers_has_the_rows_of_all_and_a_rate_to_match(
    options: dict[str, Any], size: int, batch_size: int, learning_rate: float
) -> None:
    config = TrainConfig(model=MLPConfig(hidden=(7,)), batch_size=100, learning_rate=0.01)
    whole = WorkersConfig(**options).of_world(config, size)
    assert whole.learning_rate == pytest.approx(learning_rate)
    assert whole == replace(config, batch_size=batch_size, learning_rate=whole.learning_rate)


def test_a_global_batch_that_the_workers_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"global_batch_size is 100, which 3 workers do not divide. Use 99"):
        WorkersConfig(global_batch_size=100).of_world(TrainConfig(), 3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"workers": 0}, "workers"),
        ({"global_batch_size": -1}, "global_batch_size"),
        ({"commit_every": 0}, "commit_every"),
        ({"scale_learning_rate": "cubic"}, "scale_learning_rate"),
        ({"compression": "zip"}, "compression"),
        ({"timeout_s": 0.5}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
    ],
)
def test_choices_of_workers_out_of_range_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*, expected"):
        WorkersConfig(**options)


def test_an_elastic_run_begins_between_its_bounds() -> None:
    assert WorkersConfig(workers=2, min_workers=1, max_workers=3).is_elastic
    assert not WorkersConfig(workers=2).is_elastic
    for workers in (1, 5):
        with pytest.raises(ConfigError, match="min_workers is 2, workers .*, max_workers 4: expected"):
            WorkersConfig(workers=workers, min_workers=2, max_workers=4)


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("mlp", {"hidden": (128, 0)}),
        ("mlp", {"embedding_dim": -1}),
        ("mlp", {"embedding_dim_cap": 0}),
        ("mlp", {"embedding_init": -0.1}),
        ("mlp", {"linear_scale": 0.0}),
        ("torch_mlp", {"dropout": 1.0}),
        ("torch_mlp", {"embedding_dropout": -0.1}),
        ("dlrm", {"embedding_dim": 0}),
        ("dlrm", {"bottom_mlp": (0,)}),
        ("dlrm", {"top_mlp": (8, 0)}),
        ("dcnv2", {"cross_layers": 0}),
        ("dcnv2", {"cross_rank": -1}),
        ("din", {"l2_embedding": -1.0}),
        ("din", {"embedding_dim": 0}),
        ("din", {"variant": "corect"}),
        ("dien", {"aux_weight": float("inf")}),
        ("dien", {"aux_hidden": (0,)}),
        ("dien", {"short_history": 0}),
        ("sim", {"search": "wide"}),
        ("sim", {"num_searched": 0}),
        ("sim", {"stage_one_hidden": (0,)}),
    ],
)
def test_choices_of_a_model_out_of_range_are_refused(model: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} is .*, expected"):
        MODELS[model](**option)


def test_no_hidden_layer_is_a_choice() -> None:
    assert MLPConfig(hidden=()).hidden == ()


def test_a_run_has_the_choices_of_its_model_and_no_others() -> None:
    config = TrainConfig(model=DLRMConfig(bottom_mlp=(8,)), epochs=2)
    changed = config.with_choices(top_mlp=(4,), seed=5)
    assert changed == TrainConfig(model=DLRMConfig(bottom_mlp=(8,), top_mlp=(4,)), epochs=2, seed=5)
    with pytest.raises(ConfigError, match=r"model 'dlrm' has no gru_units, hidden. It has: .*bottom_mlp, .*seed"):
        config.with_choices(gru_units=4, hidden=(3,))
    with pytest.raises(TypeError, match="gru_units"):
        MLPConfig(gru_units=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_choices_are_flat_in_manifests_and_come_back_from_them(model: type[ModelConfig]) -> None:
    config = TrainConfig(model=model(), learning_rate=0.5)
    flat = json.loads(json.dumps(config.to_dict()))
    own = {choice.name: getattr(model(), choice.name) for choice in fields(model)}
    assert (flat["model"], flat["learning_rate"]) == (model.name, 0.5)
    assert {name: flat[name] for name in own} == json.loads(json.dumps(own))
    assert not any(isinstance(value, dict) for value in flat.values())
    assert TrainConfig.from_dict(flat) == config


def test_a_model_with_a_choice_that_every_run_has_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Greedy(ModelConfig):
        name: ClassVar[str] = "greedy"
        epochs: int = 3

    with pytest.raises(ConfigError, match=r"model 'greedy' and every run both have \['epochs'\]. Rename the model's"):
        TrainConfig(model=Greedy())
