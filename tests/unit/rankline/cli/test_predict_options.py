"""Columns of a row that have the names of options."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app

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
def test_an_option_that_may_be_a_column_is_refused_in_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(RECIPE)
    done = CliRunner().invoke(app, ["predict", "shop.yaml", *words.split()])
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_says_where_such_columns_go() -> None:
    assert "after --" in " ".join(CliRunner().invoke(app, ["predict", "--help"]).stdout.replace("│", " ").split())


def test_what_a_server_has_need_not_be_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["predict", "abstract", "--url", "127.0.0.1:1", "--user", "3"])
    assert (told.exit_code, told.stderr.count("no Triton server answers at 127.0.0.1:1")) == (1, 1)
