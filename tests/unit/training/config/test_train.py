import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest

from rankline.recipes.first_recipe import table_defaults
from rankline.training.config.train import SessionConfig, TrainConfig
from rankline.training.distributed.config import WorkersConfig
from rankline.training.models import MODELS
from rankline.training.models.config import ModelConfig
from rankline.training.models.tabular import DLRMConfig, MLPConfig
from rankline.workflows.core.errors import ConfigError


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
def test_run_of_several_workers_has_the_rows_of_all_and_a_rate_to_match(
    options: dict[str, Any], size: int, batch_size: int, learning_rate: float
) -> None:
    config = TrainConfig(model=MLPConfig(hidden=(7,)), batch_size=100, learning_rate=0.01)
    whole = WorkersConfig(**options).of_world(config, size)
    assert whole.learning_rate == pytest.approx(learning_rate)
    assert whole == replace(config, batch_size=batch_size, learning_rate=whole.learning_rate)


def test_global_batch_that_the_workers_do_not_divide_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"global_batch_size is 100, expected a multiple of the number of workers \(3\), such as 99"
    ):
        WorkersConfig(global_batch_size=100).of_world(TrainConfig(), 3)


def test_elastic_run_begins_between_its_bounds() -> None:
    assert WorkersConfig(workers=2, min_workers=1, max_workers=3).is_elastic
    assert not WorkersConfig(workers=2).is_elastic
    for workers in (1, 5):
        with pytest.raises(ConfigError, match="min_workers is 2, workers .*and max_workers is 4, expected"):
            WorkersConfig(workers=workers, min_workers=2, max_workers=4)


def test_run_has_the_choices_of_its_model_and_no_others() -> None:
    config = TrainConfig(model=DLRMConfig(bottom_mlp=(8,)), epochs=2)
    changed = config.with_choices(top_mlp=(4,), seed=5)
    assert changed == TrainConfig(model=DLRMConfig(bottom_mlp=(8,), top_mlp=(4,)), epochs=2, seed=5)
    unknown = r"unknown training option gru_units, hidden for model 'dlrm'\. Available: batch.*bottom_mlp, .*seed"
    with pytest.raises(ConfigError, match=unknown):
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


def test_model_with_a_choice_that_every_run_has_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Greedy(ModelConfig):
        name: ClassVar[str] = "greedy"
        epochs: int = 3

    with pytest.raises(ConfigError, match=r"model 'greedy' has options \['epochs'\], which are also training options"):
        TrainConfig(model=Greedy())


OUT_OF_RANGE: dict[Any, list[dict[str, Any]]] = {
    TrainConfig: [
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
    SessionConfig: [
        {"checkpoint_every": -1},
        {"profile_steps": (5,)},
        {"profile_steps": (9, 5)},
        {"profile_steps": (0, 5)},
        {"device": "tpu"},
    ],
    WorkersConfig: [
        {"workers": 0},
        {"global_batch_size": -1},
        {"commit_every": 0},
        {"scale_learning_rate": "cubic"},
        {"compression": "zip"},
        {"timeout_s": 0.5},
        {"timeout_s": float("nan")},
    ],
    MODELS["mlp"]: [
        {"hidden": (128, 0)},
        {"embedding_dim": -1},
        {"embedding_dim_cap": 0},
        {"embedding_init": -0.1},
        {"linear_scale": 0.0},
        {"number_dim": -1},
        {"number_frequencies": 0},
        {"number_scale": 0.0},
    ],
    MODELS["torch_mlp"]: [{"dropout": 1.0}, {"embedding_dropout": -0.1}],
    MODELS["dlrm"]: [{"embedding_dim": 0}, {"bottom_mlp": (0,)}, {"top_mlp": (8, 0)}],
    MODELS["dcnv2"]: [{"cross_layers": 0}, {"cross_rank": -1}],
    MODELS["din"]: [{"l2_embedding": -1.0}, {"embedding_dim": 0}, {"variant": "corect"}],
    MODELS["dien"]: [{"aux_weight": float("inf")}, {"aux_hidden": (0,)}, {"short_history": 0}],
    MODELS["sim"]: [{"search": "wide"}, {"num_searched": 0}, {"stage_one_hidden": (0,)}],
    MODELS["lightgbm"]: [{"trees": 0}, {"leaves": 1}, {"shrinkage": 0.0}, {"feature_share": 1.5}, {"l2_leaves": -1.0}],
    MODELS["bayesian_fm"]: [{"factors": 0}, {"sweeps": 0}, {"served_dim": 0}, {"burn_in": 5, "sweeps": 5}],
    MODELS["ease"]: [{"regularization": 0.0}, {"recency": -1.0}, {"max_items": 0}, {"served_dim": 0}],
}


@pytest.mark.parametrize(
    ("config", "choices"),
    [
        pytest.param(config, choices, id=f"{config.__name__}-{choices}")
        for config, cases in OUT_OF_RANGE.items()
        for choices in cases
    ],
)
def test_config_refuses_choices_out_of_range(config: Any, choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(choices))} is .*, expected"):
        config(**choices)


def test_fewer_rows_get_smaller_batches_and_more_dropout() -> None:
    sizes = [table_defaults(rows) for rows in (1_000, 20_000, 200_000, 20_000_000)]
    batches, dropouts = [run.batch_size for run in sizes], [run.model.dropout for run in sizes]  # type: ignore[attr-defined]
    assert batches == sorted(batches)
    assert dropouts == sorted(dropouts, reverse=True)
