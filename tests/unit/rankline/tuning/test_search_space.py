import pytest

from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.tuning.search_space import OneOf, Range, search_space
from rankline.workflows.core.errors import ConfigError


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_every_value_of_every_model_is_one_that_it_takes_and_its_own_is_among_them(model) -> None:  # type: ignore[no-untyped-def]
    config = TrainConfig(model=model())
    space = search_space(config)
    assert space
    own = config.to_dict()
    for name, values in space.items():
        assert values.is_choice
        if isinstance(values, OneOf):
            assert own[name] in values.values
            tried = values.values
        else:
            assert values.low <= own[name] <= values.high
            tried = (values.low, values.high)
        for value in tried:
            config.with_choices(**{name: value})


def test_a_range_reaches_to_the_recipes_own_value() -> None:
    space = search_space(TrainConfig(model=DLRMConfig(dropout=0.6), learning_rate=0.5))
    assert space["dropout"] == Range(low=0.0, high=0.6)
    assert space["learning_rate"] == Range(low=0.05, high=5.0, is_log=True)
    assert space["top_mlp"] == OneOf(values=((64, 64, 64), (128, 128, 128), (256, 256, 256)))


def test_trees_have_no_learning_rate_of_steps() -> None:
    assert "learning_rate" not in search_space(TrainConfig(model=LightGBMConfig()))


def test_only_what_is_named_is_varied_and_what_cannot_be_is_told() -> None:
    assert list(search_space(TrainConfig(), ("dropout",))) == ["dropout"]
    with pytest.raises(ConfigError, match="learning_rat cannot be tuned for model 'mlp'.*learning_rate"):
        search_space(TrainConfig(), ("learning_rat",))
