from dataclasses import replace

import pytest

from rankline.recipes import Recipe, available, recipe_named
from rankline.recipes.overrides import Overrides
from rankline.training.models.base import embedding_columns
from rankline.training.models.mlp import MLPConfig
from rankline.training.models.torch_mlp import TorchMLPConfig
from rankline.training.trainers import trainer_for
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.preprocess import RowsConfig, SequenceConfig
from rankline.workflows.schema.feature_spec import Feature
from rankline.workflows.schema.spec_metadata import SpecMetadata
from tests.factories.specs import scalar_spec


def test_an_unknown_recipe_is_refused_with_the_list() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no recipe 'movielens-sed'\. Did you mean 'movielens-seed' by .*\? Available: movielens, movielens-seed",
    ):
        recipe_named("movielens-sed")


@pytest.mark.parametrize("recipe", available().recipes.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_names_a_model_that_can_be_trained_as_it_says(recipe) -> None:  # type: ignore[no-untyped-def]
    spec = scalar_spec([(10, 4), (10, 4)], 0)
    spec = replace(spec, metadata=SpecMetadata(group_by="C0", item="C1"))
    trainer_for(recipe.train.model.framework).check(spec, recipe.train)


def test_the_torch_recipe_has_the_notebooks_model_and_optimizer() -> None:
    config = recipe_named("movielens-torch").train
    model = config.model
    assert isinstance(model, TorchMLPConfig)
    assert (model.embedding_dim_cap, model.hidden) == (512, (128, 128, 128))
    assert (config.optimizer, config.learning_rate, config.batch_size) == ("adam", 0.01, 32_768)
    assert not model.linear_terms
    assert config.early_stopping_patience > 0


def test_the_seed_recipe_is_the_notebooks_configuration() -> None:
    """The notebook's tables for MovieLens-25M give 1,040 columns after the embeddings, nothing beside them."""
    config = recipe_named("movielens-seed").train
    model = config.model
    assert isinstance(model, MLPConfig)
    shapes = {"genres": (21, 16), "movieId": (56_586, 512), "userId": (162_542, 512)}
    features = [Feature(name=n, dtype="int64", cardinality=c, embedding_dim=d) for n, (c, d) in shapes.items()]
    assert sum(column.dimension for column in embedding_columns(features, model)) == 1_040
    assert (model.hidden, model.linear_terms, model.dropout, model.l2_embedding) == ((128, 128, 128), False, 0, 0)
    assert (config.optimizer, config.batch_size, config.epochs) == ("sgd", 32_768, 1)
    assert (config.weight_averaging, config.early_stopping_patience) == (False, 0)


def test_what_another_model_brings_with_it_is_said() -> None:
    recipe = recipe_named("movielens")
    assert recipe.with_overrides(Overrides({"epochs": 2})).model_choices == ""
    said = recipe.with_overrides(Overrides({"model": TorchMLPConfig(hidden=(8, 4))})).model_choices
    assert said.startswith(f"{TorchMLPConfig.name} instead of {MLPConfig.name} brings its own ")
    assert "hidden 8,4" in said
    assert said.endswith("how it is fitted stays as in movielens")


def test_a_recipe_whose_encoding_is_of_another_kind_of_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="'mine' has the encoding RowsConfig, but its dataset amazon takes Sequence"):
        Recipe(name="mine", summary="", dataset=AMAZON)


def test_options_take_the_place_of_the_recipes_values_and_others_stay() -> None:
    given = Overrides({"negatives": 2, "hash_buckets": 7, "epochs": 5, "rows": 1000})
    recipe = recipe_named("amazon-din").with_overrides(given)
    prepare, encoding, train = recipe.prepare, recipe.encoding, recipe.train
    assert encoding == SequenceConfig(negatives=2, attributes="all")
    assert (prepare.hash_buckets, train.epochs, train.batch_size) == (7, 5, 1024)
    assert recipe_named("movielens").with_overrides(Overrides({"split": "time"})).encoding == RowsConfig(split="time")


def test_a_recipe_may_have_a_name_of_ones_own() -> None:
    own, base = recipe_named("churn=movielens"), recipe_named("movielens")
    assert (own.name, own.train, own.dataset) == ("churn", base.train, base.dataset)
    with pytest.raises(ConfigError, match="the name in '../x=movielens' is '../x', expected letters"):
        recipe_named("../x=movielens")
    with pytest.raises(ConfigError, match="no recipe 'movielense'"):
        recipe_named("churn=movielense")


def test_a_run_is_named_by_what_differs_from_the_recipe() -> None:
    recipe = recipe_named("movielens")
    assert recipe.run_name == "mlp, seed 0"
    assert recipe.with_overrides(Overrides({"epochs": recipe.train.epochs})).run_name == "mlp, seed 0"
    changed = recipe.with_overrides(Overrides({"learning_rate": 0.5, "seed": 3}))
    assert changed.run_name == "mlp, learning_rate 0.5, seed 3"
    assert changed.with_overrides(Overrides({"epochs": 1})).run_name == "mlp, learning_rate 0.5, epochs 1, seed 3"
    other = recipe.with_overrides(Overrides({"model": TorchMLPConfig(embedding_dim_cap=7)}))
    assert other.run_name == "torch_mlp, embedding_dim_cap 7, seed 0"
