"""Options of verbs: those of a recipe, columns of a row that are called like options, and places for results."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.cli.options.arguments import check_writable
from rankline.recipes import recipe_named
from rankline.workflows.core.errors import ConfigError
from tests.factories.ensembles import publish_tiny
from tests.harness.commands.command_line import RANKLINE


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


def test_options_of_another_model_have_its_own_defaults() -> None:
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
def test_options_that_a_recipe_does_not_take_are_refused(arguments: list[str], message: str) -> None:
    assert message in error_of(*arguments)


def test_value_of_an_option_is_neither_a_recipe_nor_an_option() -> None:
    message = error_of("train", "--work-dir", "movielens", "criteo-dlrm", "--gru-units", "4")
    assert "train criteo-dlrm does not take" in message
    assert invoke("train", "movielens", "--hidden", "four").exit_code == 2


COLUMNS = ("user", "format", "url", "input", "output", "tls-root")
RECIPE = f"""\
name: shop
data: {{files: [rows.csv]}}
columns: {{{", ".join(f"{name}: {{}}" for name in COLUMNS)}}}
labels: {{click: {{task: binary}}}}
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--user 3 --format pro --url 9.5", "--format is an option, and 'format' a column."),
        ("--user 3 --url 9.5", "after --, as in: rankline predict shop.yaml -- --url 9.5"),
        ("--input a --output c", "--input is an option, and 'input' a column."),
        ("--user 3 --input a", "--input is an option, and 'input' a column."),
        ("--user 3 --tls-root a", "--tls-root is an option, and 'tls-root' a column."),
        # In these, what is meant is plain: nothing was exported yet.
        ("--user 3 -- --format pro --url 9.5 --input a --output c", "does not exist"),
        ("--url 127.0.0.1:1 -- --user 3 --url 9.5", "no Triton server answers at 127.0.0.1:1"),
        ("--input shop.yaml --format csv", "does not exist"),
    ],
)
def test_option_that_may_be_a_column_is_refused_in_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(RECIPE)
    done = CliRunner().invoke(app, ["predict", "shop.yaml", *words.split()])
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_predict_from_a_server_needs_nothing_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["predict", "abstract", "--url", "127.0.0.1:1", "--user", "3"])
    assert (told.exit_code, told.stderr.count("no Triton server answers at 127.0.0.1:1")) == (1, 1)


def test_place_for_a_result_is_tried_without_leaving_anything(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "new" / "deep" / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_place_for_a_result_that_takes_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file, expected a directory for result.json"):
        check_writable(tmp_path / "file" / "result.json")
    with pytest.raises(ConfigError, match="is a directory, expected a file to be written: .*result.json"):
        check_writable(tmp_path)


@pytest.mark.parametrize("verb", [["runs"], ["compare", "a", "b"], ["bench"]])
def test_refused_command_leaves_no_directory_of_its_result(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*verb, "--json", "new/deep/result.json"]).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_json_for_another_program_is_alone_on_standard_output(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "repository" / "tiny", 1)
    command = [RANKLINE, "status", "--repository", str(tmp_path / "repository"), "--json", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [ensemble["name"] for ensemble in json.loads(done.stdout)["ensembles"]] == ["tiny"]
    assert "tiny" in done.stderr
    assert not (tmp_path / "-").exists()


def test_directory_of_a_result_is_made_with_it(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "repository" / "tiny", 1)
    file = tmp_path / "new" / "status.json"
    command = ["status", "--repository", str(tmp_path / "repository"), "--json", str(file)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert file.is_file()
