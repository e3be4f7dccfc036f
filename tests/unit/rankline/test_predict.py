"""The verb `predict`: what it finds out before a server starts."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from rankline.cli.main import app
from tests.support.tiny_ensembles import publish_tiny


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with an ensemble that takes `x`, where nothing may start a server."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("serving.server.EmbeddedServer", start)
    publish_tiny(tmp_path / "models" / "movielens", 10)
    return tmp_path / "models"


def predict(repository: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["predict", "--repository", str(repository), *map(str, arguments)])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["--X", "3"], r"missing ['x'] for model 'tiny'. Expected ['x'], got ['X']. Did you mean 'x' by 'X'?"),
        (["--x", "3", "--y", "4"], "unknown ['y'] for model 'tiny'. Expected ['x'] and nothing else."),
        (["--x", "three"], "'x' has values of type string, expected INT64"),
        (["--x", "null"], "'x' has 1 nulls, and INT64 cannot hold them"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_a_server_starts(
    repository: Path, row: list[str], message: str
) -> None:
    done = predict(repository, *row)
    assert done.exit_code == 1
    assert message in done.output


def test_a_file_that_does_not_fit_is_refused_before_a_server_starts(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("X,label\n1,0\n")
    output = predict(repository, "--input", tmp_path / "rows.csv").output
    assert "the rows lack ['x']. Expected ['x'], got ['X', 'label']. Did you mean 'x' by 'X'?" in output
    (tmp_path / "rows.csv").write_text("x\n1.5\n")
    assert "'x' does not fit INT64" in predict(repository, "--input", tmp_path / "rows.csv").output


def test_what_cannot_be_written_is_refused_before_a_server_starts(repository: Path, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1], "tags": [[1, 2]]}), tmp_path / "rows.parquet")
    assert (
        "CSV cannot hold ['tags']"
        in predict(repository, "--input", tmp_path / "rows.parquet", "--format", "csv").output
    )


def test_bytes_of_a_file_do_not_reach_the_terminal(repository: Path, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "rows.csv")
    output = predict(repository, "--input", tmp_path / "rows.csv").output
    assert output.startswith("Error: ")
    assert output.count("\n") == 1
    assert output.strip().isprintable()
