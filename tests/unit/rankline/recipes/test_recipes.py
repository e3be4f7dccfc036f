"""Recipes by name, and the options that change them."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rankline.recipes import Recipe, available, recipe_named
from rankline.recipes.overrides import Overrides, flags_of, with_options
from rankline.training.config.train import TrainConfig
from rankline.training.models.base import embedding_columns
from rankline.training.models.tabular import DLRMConfig, MLPConfig, TorchMLPConfig
from rankline.training.trainers import trainer_for
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.preprocess import RowsConfig, SequenceConfig
from rankline.workflows.schema.feature_spec import Feature, SpecMetadata
from tests.factories.specs import scalar_spec


def test_unknown_recipe_is_refused_with_the_list() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no recipe 'movielens-sed'\. Did you mean 'movielens-seed' by .*\? Available: movielens, movielens-seed",
    ):
        recipe_named("movielens-sed")


@pytest.mark.parametrize("recipe", available().recipes.values(), ids=lambda recipe: recipe.name)
def test_recipe_names_a_model_that_can_be_trained(recipe) -> None:  # type: ignore[no-untyped-def]
    spec = scalar_spec([(10, 4), (10, 4)], 0)
    spec = replace(spec, metadata=SpecMetadata(group_by="C0", item="C1"))
    trainer_for(recipe.train.model.framework).check(spec, recipe.train)


def test_torch_recipe_has_the_notebooks_model_and_optimizer() -> None:
    config = recipe_named("movielens-torch").train
    model = config.model
    assert isinstance(model, TorchMLPConfig)
    assert (model.embedding_dim_cap, model.hidden) == (512, (128, 128, 128))
    assert (config.optimizer, config.learning_rate, config.batch_size) == ("adam", 0.01, 32_768)
    assert not model.linear_terms
    assert config.early_stopping_patience > 0


def test_seed_recipe_is_the_notebooks_configuration() -> None:
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


def test_choices_of_another_model_are_listed() -> None:
    recipe = recipe_named("movielens")
    assert recipe.with_overrides(Overrides({"epochs": 2})).model_choices == ""
    said = recipe.with_overrides(Overrides({"model": TorchMLPConfig(hidden=(8, 4))})).model_choices
    assert said.startswith(f"{TorchMLPConfig.name} instead of {MLPConfig.name} brings its own ")
    assert "hidden 8,4" in said
    assert said.endswith("how it is fitted stays as in movielens")


def test_encoding_of_another_kind_of_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="'mine' has the encoding RowsConfig, but its dataset amazon takes Sequence"):
        Recipe(name="mine", summary="", dataset=AMAZON)


def test_options_replace_values_of_the_recipe_and_others_stay() -> None:
    given = Overrides({"negatives": 2, "hash_buckets": 7, "epochs": 5, "rows": 1000})
    recipe = recipe_named("amazon-din").with_overrides(given)
    prepare, encoding, train = recipe.prepare, recipe.encoding, recipe.train
    assert encoding == SequenceConfig(negatives=2, attributes="all")
    assert (prepare.hash_buckets, train.epochs, train.batch_size) == (7, 5, 1024)
    assert recipe_named("movielens").with_overrides(Overrides({"split": "time"})).encoding == RowsConfig(split="time")


def test_recipe_may_have_a_name_of_its_own() -> None:
    own, base = recipe_named("churn=movielens"), recipe_named("movielens")
    assert (own.name, own.train, own.dataset) == ("churn", base.train, base.dataset)
    with pytest.raises(ConfigError, match="the name in '../x=movielens' is '../x', expected letters"):
        recipe_named("../x=movielens")
    with pytest.raises(ConfigError, match="no recipe 'movielense'"):
        recipe_named("churn=movielense")


def test_run_is_named_by_what_differs_from_the_recipe() -> None:
    recipe = recipe_named("movielens")
    assert recipe.run_name == "mlp, seed 0"
    assert recipe.with_overrides(Overrides({"epochs": recipe.train.epochs})).run_name == "mlp, seed 0"
    changed = recipe.with_overrides(Overrides({"learning_rate": 0.5, "seed": 3}))
    assert changed.run_name == "mlp, learning_rate 0.5, seed 3"
    assert changed.with_overrides(Overrides({"epochs": 1})).run_name == "mlp, learning_rate 0.5, epochs 1, seed 3"
    other = recipe.with_overrides(Overrides({"model": TorchMLPConfig(embedding_dim_cap=7)}))
    assert other.run_name == "torch_mlp, embedding_dim_cap 7, seed 0"


@dataclass(frozen=True, kw_only=True)
class BrewConfig:
    """How to brew.

    Attributes:
        temperature_c: of the water,
            in degrees.
        rinse: wet the filter first.
        sizes: of the cups.
        bean: a variety; None takes what is there.
    """

    temperature_c: float = 92.0
    rinse: bool = True
    sizes: tuple[int, ...] = (1, 2)
    bean: str | None = None


def app(received: list[BrewConfig]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options(BrewConfig)
    def brew(*, overrides: Overrides) -> None:
        """Brew."""
        received.append(overrides.apply(BrewConfig()))

    return app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], BrewConfig()),
        (["--temperature-c", "80"], BrewConfig(temperature_c=80.0)),
        (["--no-rinse"], BrewConfig(rinse=False)),
        (["--sizes", "3,4,5"], BrewConfig(sizes=(3, 4, 5))),
        (["--bean", "geisha"], BrewConfig(bean="geisha")),
    ],
)
def test_each_field_is_an_option_and_what_is_not_given_stays(arguments: list[str], expected: BrewConfig) -> None:
    received: list[BrewConfig] = []
    result = CliRunner().invoke(app(received), arguments)
    assert result.exit_code == 0, result.output
    assert received == [expected]


def test_help_comes_from_the_docstring_of_the_class() -> None:
    result = CliRunner().invoke(app([]), ["--help"], terminal_width=120)
    assert "Of the water, in degrees." in result.output
    assert "Brew options" in result.output


def test_defaults_are_those_of_the_config_that_is_given() -> None:
    command = with_options(BrewConfig(sizes=(5,), bean="geisha"))(lambda *, overrides: None)
    app = typer.Typer(rich_markup_mode="markdown")
    app.command()(command)
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "[default: 5]" in output
    assert "[default: geisha]" in output


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"epochs": 2, "hidden": (3,)}, TrainConfig(epochs=2, model=MLPConfig(hidden=(3,)))),
        ({"model": DLRMConfig(), "top_mlp": (3,)}, TrainConfig(model=DLRMConfig(top_mlp=(3,)))),
    ],
)
def test_options_reach_the_config_that_a_config_holds(values: dict[str, Any], expected: TrainConfig) -> None:
    assert Overrides(values).apply(TrainConfig()) == expected
    assert {"--epochs", "--hidden", "--model"} <= set(flags_of(TrainConfig))


def test_option_that_is_no_list_of_numbers_is_refused() -> None:
    result = CliRunner().invoke(app([]), ["--sizes", "3,four"])
    assert result.exit_code == 2
    assert "expected whole numbers" in " ".join(result.output.split())


def test_config_field_without_documentation_is_refused() -> None:
    @dataclass(frozen=True)
    class Silent:
        """Nothing."""

        loud: int = 1

    with pytest.raises(TypeError, match=r"Silent\.loud has no line under 'Attributes:'"):
        with_options(Silent)(lambda *, overrides: None)
    assert "overrides" not in inspect.signature(with_options(BrewConfig)(lambda *, overrides: None)).parameters


def test_config_field_with_the_name_of_another_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="--bean would be two options of this command, by BrewConfig and BrewConfig"):
        with_options(BrewConfig, BrewConfig(rinse=False))(lambda *, overrides: None)
