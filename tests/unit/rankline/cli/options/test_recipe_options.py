"""Options of the recipe that a verb is called with."""

import re

import pytest
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.recipes import available, recipe_named
from rankline.workflows.core.errors import ConfigError


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})


def text_of(*arguments: str) -> str:
    done = invoke(*arguments, "--help")
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def error_of(*arguments: str) -> str:
    done = invoke("--debug", *arguments)
    assert isinstance(done.exception, ConfigError)
    return str(done.exception)


def test_help_of_a_recipe_has_its_models_options_and_its_own_defaults() -> None:
    text = text_of("train", "criteo-dlrm")
    assert "DLRM options" in text
    assert "[default: 1024,512,256]" in text
    assert f"[default: {recipe_named('criteo-dlrm').train.batch_size}]" in text
    assert "--workers" in text
    assert "--gru-units" not in text
    assert "--frequency-threshold" not in text
    assert "--frequency-threshold" in text_of("run", "criteo-dlrm")


@pytest.mark.parametrize("verb", ["run", "prepare", "train"])
def test_help_without_a_recipe_has_the_general_options_and_says_where_the_others_are(verb: str) -> None:
    text = text_of(verb)
    assert f"rankline {verb} RECIPE --help" in text
    assert "--work-dir" in text
    assert not any(flag in text for flag in ("--seed ", "--hidden", "--split-seed", "--negatives"))


def test_a_verb_names_the_recipes_and_the_front_page_says_what_they_are() -> None:
    for recipe in available().recipes.values():
        assert recipe.name in text_of("train")
        assert recipe.summary not in text_of("train")
        assert f"{recipe.name}: {recipe.summary}" in text_of()


def test_the_help_says_what_can_be_downloaded_of_which_dataset() -> None:
    text = text_of("prepare")
    for recipe in available().recipes.values():
        assert all(archive in text for archive in recipe.dataset.archives)
        if not recipe.dataset.archives:
            assert re.search(rf"{recipe.dataset.name}[^;]* have none", text, re.IGNORECASE)


def test_another_model_brings_its_own_options_with_its_own_defaults() -> None:
    for model in (["--model", "dlrm"], ["--model=dlrm"], ["--model", "mlp", "--model", "dlrm"]):
        text = text_of("train", *model, "criteo-dcnv2")
        assert "--bottom-mlp" in text
        assert "--cross-layers" not in text
    assert "--top-mlp" in error_of("train", "criteo-dcnv2", "--model", "dlrm", "--cross-layers", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "movielens", "--gru-units", "4"], "train movielens does not take --gru-units"),
        (["train", "--gru-units", "4", "movielens", "--search=hard"], "does not take --gru-units, --search"),
        (["run", "criteo-dlrm", "--no-own-items"], "run criteo-dlrm does not take --no-own-items"),
        (["prepare", "amazon-din", "--split", "time"], "prepare amazon-din does not take --split. This recipe has"),
        (["train", "movielens", "--model", "dllm"], "no model 'dllm'. Available: bayesian_fm, dcnv2, "),
        (
            ["train", "movielenz", "--epochs", "4"],
            "no recipe 'movielenz'. Did you mean 'movielens' by 'movielenz'? Available: movielens, ",
        ),
        (["train", "movielens", "--epoch", "4"], "Did you mean '--epochs' by '--epoch'?"),
    ],
)
def test_what_a_recipe_does_not_take_is_an_error(arguments: list[str], message: str) -> None:
    assert message in error_of(*arguments)


def test_the_error_names_the_options_of_the_recipe() -> None:
    message = error_of("train", "criteo-dlrm", "--hidden", "4")
    assert all(flag in message for flag in ("--bottom-mlp", "--top-mlp", "--epochs", "--model"))
    assert "--gru-units" not in message


def test_a_value_is_neither_a_recipe_nor_an_option() -> None:
    message = error_of("train", "--work-dir", "movielens", "criteo-dlrm", "--gru-units", "4")
    assert "train criteo-dlrm does not take" in message
    assert invoke("train", "movielens", "--hidden", "four").exit_code == 2
