import pytest

from rankline.recipes import RECIPES, recipe_named
from training.fit import fit_for
from training.models.base import embedding_columns
from training.models.mlp import MLPConfig
from training.models.torch_mlp import TorchMLPConfig
from workflows.datasets import DATASETS
from workflows.errors import ConfigError
from workflows.feature_spec import Feature, FeatureSpec


def test_an_unknown_recipe_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="no recipe 'movielens-sed'. Available: movielens, movielens-seed"):
        recipe_named("movielens-sed")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_names_a_dataset_that_there_is(recipe) -> None:  # type: ignore[no-untyped-def]
    assert recipe.dataset in DATASETS


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_names_a_model_that_can_be_trained_as_it_says(recipe) -> None:  # type: ignore[no-untyped-def]
    label = Feature(name="label", dtype="float32")
    spec = FeatureSpec(features=(label,), channels={"label": ("label",)})
    fit_for(recipe.train.model.backend).check(spec, recipe.train)


def test_the_torch_recipe_has_the_notebooks_model_and_optimizer() -> None:
    config = RECIPES["movielens-torch"].train
    model = config.model
    assert isinstance(model, TorchMLPConfig)
    assert (model.embedding_dim_cap, model.hidden) == (512, (128, 128, 128))
    assert (config.optimizer, config.learning_rate, config.batch_size) == ("adam", 0.01, 32_768)
    assert not model.linear_terms
    assert config.early_stopping_patience > 0


def test_the_seed_recipe_is_the_notebooks_configuration() -> None:
    """The notebook's tables for MovieLens-25M give 1,040 columns after the embeddings, nothing beside them."""
    config = RECIPES["movielens-seed"].train
    model = config.model
    assert isinstance(model, MLPConfig)
    shapes = {"genres": (21, 16), "movieId": (56_586, 512), "userId": (162_542, 512)}
    features = [Feature(name=n, dtype="int64", cardinality=c, embedding_dim=d) for n, (c, d) in shapes.items()]
    assert sum(column.dimension for column in embedding_columns(features, model)) == 1_040
    assert (model.hidden, model.linear_terms, model.dropout, model.l2_embedding) == ((128, 128, 128), False, 0, 0)
    assert (config.optimizer, config.batch_size, config.epochs) == ("sgd", 32_768, 1)
    assert (config.weight_averaging, config.early_stopping_patience) == (False, 0)
