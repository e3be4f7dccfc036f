"""Options of verbs, columns that are called like options, places for results, and what a shell offers behind Tab."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from rankline.cli.options.arguments import check_writable
from rankline.recipes import available, recipe_named
from rankline.serving.engines import engines
from rankline.workflows.core.errors import ConfigError
from tests.factories.ensembles import NAME, publish_tiny
from tests.unit.rankline.conftest import Store


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})


def text_of(*arguments: str) -> str:
    done = invoke(*arguments, "--help-all")
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
        (["train", "movielens", "--gru-units", "4"], "train movielens does not support --gru-units"),
        (["train", "--gru-units", "4", "movielens", "--search=hard"], "does not support --gru-units, --search"),
        (
            ["prepare", "amazon-din", "--split", "time"],
            "prepare amazon-din does not support --split. This recipe supports",
        ),
        (["train", "movielenz", "--epochs", "4"], "unknown recipe 'movielenz'. Did you mean 'movielens' by"),
        (["train", "movielens", "--epoch", "4"], "Did you mean '--epochs' by '--epoch'?"),
    ],
)
def test_options_that_a_recipe_does_not_take_are_refused(arguments: list[str], message: str) -> None:
    assert message in error_of(*arguments)


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
        ("--user 3 --format pro --url 9.5", "--format is an option of this command, but 'format' is also a column."),
        ("--user 3 --url 9.5", "after --, as in: rankline predict shop.yaml -- --url 9.5"),
        ("--input a --output c", "--input is an option of this command, but 'input' is also a column."),
        ("--user 3 -- --format pro --url 9.5 --input a --output c", "does not exist"),
        ("--url 127.0.0.1:1 -- --user 3 --url 9.5", "no Triton server answers at 127.0.0.1:1"),
    ],
)
def test_option_that_may_be_a_column_is_refused(
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
    with pytest.raises(ConfigError, match="is a directory, expected a file such as .*result.json"):
        check_writable(tmp_path)
    assert "is a directory, expected a file such as result.html" in invoke("compare", "a", "b", "--html", ".").output


@pytest.mark.parametrize("verb", [["runs"], ["compare", "a", "b"], ["bench"]])
def test_refused_command_leaves_no_directory(verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*verb, "--json", "new/deep/result.json"]).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_json_for_another_program_is_alone_on_standard_output(tmp_path: Path) -> None:
    publish_tiny(tmp_path / "repository" / "tiny", 1)
    done = invoke("status", "--repository", str(tmp_path / "repository"), "--json", "-")
    assert [ensemble["name"] for ensemble in json.loads(done.stdout)["ensembles"]] == ["tiny"]
    assert "tiny" in done.stderr
    assert not Path("-").exists()
    assert "tiny" in invoke("status", "--repository", str(tmp_path / "repository")).stdout


MOVIELENS = [name for name in available().recipes if name.startswith("movielens")]


@pytest.fixture
def place(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an export under a name of its own, in two versions, and the store of runs as work."""
    for offset in (10, 20):
        publish_tiny(tmp_path / "model_repository" / NAME, offset)
    (tmp_path / "model_repository" / "broken").mkdir()
    (tmp_path / "work").symlink_to(store.root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(typed: str) -> list[str]:
    """What follows a line that ends at the cursor."""
    words = typed.split(" ")
    variables = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_RANKLINE_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, [], env=variables, prog_name="rankline")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rankline exp", ["export"]),
        ("rankline train movie", MOVIELENS),
        ("rankline serve t", [NAME]),
        (f"rankline promote {NAME} --to ", ["1", "2"]),
        ("rankline promote nobody --to ", []),
        (f"rankline compare {NAME}@1 ti", [f"{NAME}@1", f"{NAME}@2"]),
        ("rankline train movielens --model dl", ["dlrm"]),
        ("rankline tune movielens --engine ", list(engines())),
    ],
)
def test_names_are_offered(place: Path, typed: str, expected: list[str]) -> None:
    assert offered(typed) == expected


def test_runs_are_offered_by_as_many_digits_as_are_typed(place: Path, store: Store) -> None:
    run_id = store.run()
    assert run_id[:8] in offered("rankline compare ")
    assert offered(f"rankline compare {run_id[:12]}") == [run_id]
    assert not set(offered("rankline compare --work-dir elsewhere ")) & {run_id[:8]}


@pytest.mark.parametrize("typed", ["rankline compare 0", "rankline runs --work-dir work x", "rankline promote --to "])
def test_unreadable_directory_offers_nothing(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert offered(typed) == []
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mlflow.db").write_text("no database")
    (tmp_path / "model_repository").write_text("no directory")
    assert offered(typed) == []


def test_bash_takes_what_is_offered_and_nothing_heavy_is_imported(place: Path) -> None:
    program = (
        "import atexit, sys\n"
        "heavy = {'mlflow', 'tensorflow', 'torch', 'nvtabular', 'pandas'}\n"
        "atexit.register(lambda: print(*heavy & set(sys.modules), file=sys.stderr, end=''))\n"
        "from rankline.cli.main import main\n"
        "main()"
    )
    command = place / "rankline"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'rankline'\n{program}\n")
    command.chmod(0o755)
    typed = (
        'eval "$(_RANKLINE_COMPLETE=source_bash rankline)"\n'
        f'COMP_WORDS=(rankline compare {NAME}@1 {NAME}@2 ""); COMP_CWORD=4\n'
        "_rankline_completion rankline\n"
        'echo "${COMPREPLY[@]}"'
    )
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", typed], env={**os.environ, "PATH": path}, text=True, capture_output=True)
    assert done.stderr == ""
    assert done.stdout.split()[-2:] == [f"{NAME}@1", f"{NAME}@2"]


@pytest.mark.parametrize(("arguments", "most"), [([], 45), (["run", "movielens"], 60), (["train", "movielens"], 60)])
def test_help_fits_a_screen_and_cuts_no_name(arguments: list[str], most: int) -> None:
    output = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80"}).output
    lines = output.splitlines()
    assert len(lines) <= most
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in output.replace("N,N,…", "")


def test_help_lists_every_command_below_its_purpose() -> None:
    text = " ".join(invoke("--help").output.split())
    assert "Start init Inspect your own data" in text
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f" {name} " not in text] == []


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("expory", " Did you mean 'export'?"), ("rnu", " Did you mean 'run'?"), ("x", "")],
)
def test_unknown_command_is_told_the_nearest(typed: str, hint: str) -> None:
    done = invoke(typed)
    assert done.exit_code == 1
    assert f"unknown command '{typed}'.{hint} List the commands with" in " ".join(done.output.split())


@pytest.mark.parametrize("verb", ["run", "prepare"])
def test_only_recipes_that_generate_rows_offer_their_number(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(RECIPE)
    flags = ("--rows N", "--data-seed N", "--cardinality-scale X")
    assert [flag for flag in flags if flag in text_of(verb, "shop.yaml")] == []
    assert [flag for flag in flags if flag in text_of(verb, "movielens")] == [*flags]


@pytest.mark.parametrize("verb", ["register", "promote"])
def test_short_help_says_which_version_is_the_default(verb: str) -> None:
    assert "[default: the newest]" in invoke(verb, "--help").output


def test_short_help_says_how_to_see_the_rest() -> None:
    text = invoke("run", "movielens", "--help").output
    assert " run movielens --help-all" in text
    assert "--embedding-init" not in text
    assert "--embedding-init X" in invoke("run", "movielens", "--help-all").output
