"""Recipes by name and by file, and the options that change them."""

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from rankline.recipes import Recipe, available, recipe_named
from rankline.recipes.overrides import Overrides, flags_of, with_options
from rankline.recipes.recipe_file import read_recipe, recipe_schema
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS
from rankline.training.models.base import embedding_columns
from rankline.training.models.tabular import DLRMConfig, MLPConfig, TorchMLPConfig
from rankline.training.trainers import trainer_for
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.preprocess import RowsConfig, SequenceConfig
from rankline.workflows.schema.feature_spec import Feature, SpecMetadata
from rankline.workflows.schema.targets import Head
from tests.factories.specs import scalar_spec


def test_unknown_recipe_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'movielens-sed'\. Did you mean 'movielens-seed' by"):
        recipe_named("movielens-sed")


@pytest.mark.parametrize("recipe", available().recipes.values(), ids=lambda recipe: recipe.name)
def test_recipe_names_a_model_that_can_be_trained(recipe) -> None:  # type: ignore[no-untyped-def]
    spec = scalar_spec([(10, 4), (10, 4)], 0)
    spec = replace(spec, metadata=SpecMetadata(group_by="C0", item="C1"))
    trainer_for(recipe.train.model.framework).check(spec, recipe.train)


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
    assert said.startswith(f"{TorchMLPConfig.name} replaces {MLPConfig.name} and uses its own ")
    assert "hidden 8,4" in said
    assert said.endswith("the training settings stay as in movielens")


def test_encoding_of_another_kind_of_data_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="'mine' uses encoding RowsConfig, but its dataset amazon requires SequenceConfig"
    ):
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
    with pytest.raises(ConfigError, match="the name in '../x=movielens' is '../x', expected only letters"):
        recipe_named("../x=movielens")
    with pytest.raises(ConfigError, match="unknown recipe 'movielense'"):
        recipe_named("churn=movielense")


def test_recipe_file_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path)
    own = recipe_named(f"churn={path}")
    assert (own.name, own.file) == ("churn", path)
    assert recipe_named(str(path.rename(tmp_path / "a=b.yaml"))).name == "shop"


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
        (["--no-rinse"], BrewConfig(rinse=False)),
        (["--sizes", "3,4,5"], BrewConfig(sizes=(3, 4, 5))),
    ],
)
def test_config_fields_are_options_and_keep_defaults(arguments: list[str], expected: BrewConfig) -> None:
    received: list[BrewConfig] = []
    result = CliRunner().invoke(app(received), arguments)
    assert result.exit_code == 0, result.output
    assert received == [expected]


def test_help_comes_from_the_docstring_of_the_class() -> None:
    result = CliRunner().invoke(app([]), ["--help"], terminal_width=120)
    assert "Of the water, in degrees." in result.output
    assert "Brew options" in result.output


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
    assert "expected integers" in " ".join(result.output.split())


def test_config_field_without_documentation_is_refused() -> None:
    @dataclass(frozen=True)
    class Silent:
        """Nothing."""

        loud: int = 1

    with pytest.raises(ConfigError, match=r"Silent\.loud is not documented. Add a line for it under 'Attributes:'"):
        with_options(Silent)(lambda *, overrides: None)
    assert "overrides" not in inspect.signature(with_options(BrewConfig)(lambda *, overrides: None)).parameters


WHOLE = """\
name: shop
data:
  files: [rows.csv, more/*.csv]
columns:
  user: {role: id, frequency_threshold: 3}
  price: {type: float, role: numeric, scale: log}
  "no": {role: ignored}
  when: {type: timestamp, role: timestamp, format: "%d/%m/%Y", parts: [month]}
labels:
  bought: {classes: [no, yes]}
time: when
group: user
rows: {split: time, valid_share: 0.1}
prepare: {hash_buckets: 7}
model: {name: dlrm, top_mlp: [16, 8], embedding_dim: 4}
training: {epochs: 2, learning_rate: 1e-2}
serving: {engine: onnx, max_batch_size: 128}
"""


def written(tmp_path: Path, text: str = WHOLE) -> Path:
    path = tmp_path / "rankline.yaml"
    path.write_text(text)
    return path


def test_recipe_file_makes_the_recipe_that_python_would(tmp_path: Path) -> None:
    recipe = recipe_named(str(written(tmp_path)))
    assert recipe.name == "shop"
    assert recipe.dataset.heads == (Head("bought"),)
    assert recipe.dataset.inputs == ("user", "price", "when")
    assert (recipe.dataset.time, recipe.dataset.group_by) == ("when", "user")
    assert recipe.dataset.directory == tmp_path
    assert recipe.encoding == RowsConfig(split="time", valid_share=0.1)
    assert recipe.prepare.hash_buckets == 7
    assert recipe.train.model == DLRMConfig(top_mlp=(16, 8), embedding_dim=4)
    assert (recipe.train.epochs, recipe.train.learning_rate) == (2, 0.01)
    assert (recipe.serving.engine, recipe.serving.max_batch_size) == ("onnx", 128)


def test_recipe_file_refuses_an_option_that_chooses_a_model_for_histories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model 'sim' .* cannot be used in a recipe file\. Choose one of auto, "):
        read_recipe(written(tmp_path)).with_overrides(Overrides({"model": MODELS["sim"]()}))


def test_recipe_file_has_the_defaults_of_python(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, "name: t\ndata: {files: [a.csv]}\ncolumns: {x: {}}\nlabels: {y: {}}\n"))
    assert recipe.train == recipe_named("movielens").train
    assert recipe.encoding == RowsConfig()


def _replaced(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new)


WRONG: dict[str, tuple[str, str]] = {
    "a typo in a section": (_replaced("labels:", "lables:"), "line 9: unknown key 'lables'. Expected data, columns,"),
    "a typo in a key": (
        _replaced("frequency_threshold: 3", "frequency_treshold: 3"),
        "line 5: unknown key 'frequency_treshold'",
    ),
    "a typo in a value": (_replaced("role: numeric", "role: numerical"), "line 6: columns.price.role is 'numerical'"),
    "a model for histories": (_replaced("name: dlrm", "name: din"), "line 15: model 'din' requires a dataset"),
    "a model's typo": (_replaced("top_mlp", "top_mpl"), "line 15: unknown key 'top_mpl' in model"),
    "a key of another section": (_replaced("epochs: 2", "top_mlp: [2]"), "seed. It is a key of model."),
    "a key of a section": (WHOLE + "frequency_threshold: 3\n", "serving. It is a key of prepare."),
    "a model's key in the wrong place": (_replaced("valid_share: 0.1", "model: mlp"), "Expected split, "),
    "a text for a number": (_replaced("epochs: 2", "epochs: two"), "line 16: training.epochs is 'two', expected a"),
    "one for a list": (_replaced("[rows.csv, more/*.csv]", "rows.csv"), "line 3: data.files is 'rows.csv', expected"),
    "out of range": (_replaced("valid_share: 0.1", "valid_share: 2"), "line 13: rows: valid_share is 2.0, expected a"),
    "twice": (WHOLE + "name: again\n", "line 18: 'name' is already defined on line 1"),
    "something missing": (
        _replaced("labels:\n  bought: {classes: [no, yes]}\n", ""),
        "line 1: the file is missing labels",
    ),
    "no YAML": (_replaced("[16, 8]", "[16, 8"), "line 15: invalid YAML"),
    "a list": ("- a\n", "line 1: the file is a list, expected keys with values"),
    "a group that is a label": (
        _replaced("group: user", "group: bought").replace("columns:", "columns:\n  bought: {role: group}"),
        "'bought', which is a label",
    ),
    "a time that there is not": (_replaced("time: when", "time: wen"), "'wen', which is not a column. Did you mean"),
    "a type where it cannot go": (
        _replaced("type: float, role: numeric", "type: string, role: numeric"),
        "line 6: columns.price: role numeric has type string, expected int, float or bool",
    ),
    "a label and feature": (_replaced("bought:", "user:"), "['user'] are both labels and features"),
    "a name with a slash": (_replaced("name: shop", "name: a/b"), "name is 'a/b', expected letters, digits, - and _"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake_in_a_recipe_file_is_named_with_its_line(tmp_path: Path, case: str) -> None:
    text, message = WRONG[case]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        read_recipe(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert len(str(refusal.value).splitlines()) <= 2


def test_schema_takes_what_is_read_and_refuses_what_is_not(tmp_path: Path) -> None:
    schema = recipe_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert not list(
        validator.iter_errors(yaml.safe_load(WHOLE.replace("1e-2", "0.01")))
    )  # which YAML 1.1 takes for a text
    # Of what is wrong by its shape; what contradicts itself only the reader finds.
    for case in ("a typo in a section", "a typo in a key", "a typo in a value", "a model's typo", "one for a list"):
        assert list(validator.iter_errors(yaml.safe_load(WRONG[case][0]))), case
    assert written(tmp_path).exists()


def test_schema_describes_every_choice() -> None:
    schema = recipe_schema()
    names = [name for name in schema["$defs"] if name.endswith("Config")]
    assert {"ColumnConfig", "LabelConfig", "FilesConfig", "RowsConfig", "TrainConfig"} <= set(names)
    assert all(choice["description"] for name in names for choice in schema["$defs"][name]["properties"].values())
    models: list[dict[str, Any]] = schema["properties"]["model"]["anyOf"]
    assert models[0]["enum"] == sorted({*MODELS} - {"din", "dien", "sim"})
    assert "model" not in schema["$defs"]["TrainConfig"]["properties"]


def test_missing_file_is_refused_with_the_one_of_almost_that_name(tmp_path: Path) -> None:
    written(tmp_path, "name: t\n")
    with pytest.raises(ConfigError, match=r"rankline\.yml cannot be read .* Did you mean 'rankline\.yaml'"):
        read_recipe(tmp_path / "rankline.yml")


def test_only_files_and_folders_of_data_are_called_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shop/recipes.py", "logs/monday.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a,b\n")
    with pytest.raises(ConfigError, match="unknown recipe 'shop'"):
        recipe_named("shop")
    for data in ("logs", "logs/monday.csv"):
        with pytest.raises(ConfigError, match=f"{data} is data, not a recipe"):
            recipe_named(data)
