"""Recipe files: what they make, their schema, and what is said of a wrong one."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from rankline.recipes import recipe_named
from rankline.recipes.recipe_file import read_recipe, recipe_schema
from rankline.training.models import MODELS
from rankline.training.models.tabular import DLRMConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.schema.targets import Head

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
    assert (recipe.dataset.time, recipe.dataset.group, recipe.dataset.group_by) == ("when", "user", "user")
    assert recipe.dataset.directory == tmp_path
    assert recipe.encoding == RowsConfig(split="time", valid_share=0.1)
    assert recipe.prepare.hash_buckets == 7
    assert recipe.train.model == DLRMConfig(top_mlp=(16, 8), embedding_dim=4)
    assert (recipe.train.epochs, recipe.train.learning_rate) == (2, 0.01)
    assert (recipe.serving.engine, recipe.serving.max_batch_size) == ("onnx", 128)


def test_recipe_file_has_the_defaults_of_python(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, "name: t\ndata: {files: [a.csv]}\ncolumns: {x: {}}\nlabels: {y: {}}\n"))
    assert recipe.train == recipe_named("movielens").train
    assert recipe.encoding == RowsConfig()


def _replaced(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new)


WRONG: dict[str, tuple[str, str]] = {
    "a typo in a section": (
        _replaced("labels:", "lables:"),
        "line 9: 'lables' is not known. Expected data, columns,",
    ),
    "a typo in a key": (
        _replaced("frequency_threshold: 3", "frequency_treshold: 3"),
        "line 5: 'frequency_treshold' is not known in columns.user",
    ),
    "a typo in a value": (
        _replaced("role: numeric", "role: numerical"),
        "line 6: columns.price.role is 'numerical', expected one of id, categorical",
    ),
    "a model's typo": (_replaced("top_mlp", "top_mpl"), "line 15: 'top_mpl' is not known in model"),
    "a text for a number": (
        _replaced("epochs: 2", "epochs: two"),
        "line 16: training.epochs is 'two', expected a whole number",
    ),
    "a list for a text": (_replaced("name: shop", "name: [shop]"), "line 1: name is a list, expected a text"),
    "one for a list": (
        _replaced("[rows.csv, more/*.csv]", "rows.csv"),
        "line 3: data.files is 'rows.csv', expected a list",
    ),
    "out of range": (
        _replaced("valid_share: 0.1", "valid_share: 2"),
        "line 13: rows: valid_share is 2.0, expected a share between 0 and 1",
    ),
    "more buckets of a column": (
        _replaced("frequency_threshold: 3", "hash_buckets: 2000000000"),
        "line 5: columns.user: hash_buckets is 2000000000, expected at most 67108864",
    ),
    "a number without end": (_replaced("epochs: 2", "epochs: " + "9" * 5_000), "a number has more than 100 digits"),
    "twice": (WHOLE + "name: again\n", "line 18: 'name' is there already, in line 1"),
    "something missing": (_replaced("labels:\n  bought: {classes: [no, yes]}\n", ""), "line 1: the file lacks labels"),
    "no YAML": (_replaced("[16, 8]", "[16, 8"), "line 15: not YAML"),
    "empty": ("", "is empty. Make one with: rankline init FILE"),
    "a list": ("- a\n", "line 1: the file is a list, expected names with values"),
    "a time that there is not": (_replaced("time: when", "time: wen"), "'wen', which is no column. Did you mean"),
    "a type where it cannot go": (
        _replaced("type: float, role: numeric", "type: string, role: numeric"),
        "line 6: columns.price: role numeric has type string, expected int, float or bool",
    ),
    "a timestamp without parts": (_replaced(", parts: [month]", ""), "columns.when: role timestamp has no parts"),
    "a label and feature": (_replaced("bought:", "user:"), "['user'] are labels and features too"),
    "three classes": (_replaced("[no, yes]", "[a, b, c]"), "labels.bought: a binary label has the classes"),
    "a history of nothing": (
        _replaced("role: id, frequency_threshold: 3", "role: history, of: item"),
        "columns.user.of is 'item', which is no column",
    ),
    "the name of what is answered": (_replaced("price:", "score:"), "the output of the served model has this name"),
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
    assert models[0]["enum"] == sorted(MODELS)
    assert "model" not in schema["$defs"]["TrainConfig"]["properties"]


def test_missing_file_is_refused_with_the_one_of_almost_that_name(tmp_path: Path) -> None:
    written(tmp_path, "name: t\n")
    with pytest.raises(ConfigError, match=r"rankline\.yml cannot be read .* Did you mean 'rankline\.yaml'"):
        read_recipe(tmp_path / "rankline.yml")
