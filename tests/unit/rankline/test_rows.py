import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from rankline.rows import from_options, read_rows, select, write_scores
from workflows.errors import ConfigError, DataError

ROWS = pa.table({"userId": [1, 2], "movieId": [31, -5]})


def test_options_become_one_row_with_json_values() -> None:
    row = from_options(["--userId", "1", "--name=Zoë", "--tags", "[1, 2]"])
    assert row.to_pylist() == [{"userId": 1, "name": "Zoë", "tags": [1, 2]}]


def test_null_is_a_missing_value() -> None:
    assert from_options(["--userId", "null", "--tags", "[]"]).to_pylist() == [{"userId": None, "tags": []}]


@pytest.mark.parametrize("arguments", [["userId", "1"], ["--userId"], ["--", "1"]])
def test_an_option_without_a_value_is_refused_with_an_example(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match="not a column with a value. Example: --userId 1"):
        from_options(arguments)


def test_a_number_that_no_column_holds_is_refused() -> None:
    with pytest.raises(DataError, match="no row that can be sent"):
        from_options(["--userId", "99999999999999999999"])


def write(path: Path, format_name: str) -> None:
    if format_name == "csv":
        csv.write_csv(ROWS, path)
    elif format_name == "parquet":
        parquet.write_table(ROWS, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()))


@pytest.mark.parametrize("format_name", ["csv", "parquet", "jsonl"])
def test_each_format_is_told_by_its_ending_and_comes_back_with_scores(tmp_path: Path, format_name: str) -> None:
    write(tmp_path / f"rows.{format_name}", format_name)
    rows, found = read_rows(str(tmp_path / f"rows.{format_name}"), None)
    assert (rows, found) == (ROWS, format_name)
    write_scores(rows, np.array([0.25, 0.5], np.float32), found, tmp_path / f"scored.{format_name}")
    scored, _ = read_rows(str(tmp_path / f"scored.{format_name}"), None)
    assert scored.to_pydict() == {**ROWS.to_pydict(), "score": [0.25, 0.5]}


@pytest.mark.parametrize("format_name", ["csv", "parquet", None])
def test_stdin_holds_any_format_and_json_lines_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str | None
) -> None:
    write(tmp_path / "rows", format_name or "jsonl")
    stdin = io.TextIOWrapper(io.BytesIO((tmp_path / "rows").read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)  # the process's own input, not what is tested
    assert read_rows("-", format_name) == (ROWS, format_name or "jsonl")


@pytest.mark.parametrize(("name", "content"), [("a.parquet", b"PAR1"), ("a.jsonl", b"{"), ("a.csv", b"")])
def test_a_file_that_cannot_be_read_is_named_with_its_format(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} cannot be read as"):
        read_rows(str(tmp_path / name), None)


def test_a_missing_file_and_an_unknown_format_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.csv does not exist"):
        read_rows(str(tmp_path / "rows.csv"), None)
    with pytest.raises(ConfigError, match="--format is 'xls'. Available: csv, parquet, jsonl"):
        read_rows("rows.csv", "xls")


def test_the_ending_of_the_output_names_its_format(tmp_path: Path) -> None:
    write_scores(ROWS, np.array([0.25, 0.5]), "csv", tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0]) == {
        "userId": 1,
        "movieId": 31,
        "score": 0.25,
    }


def test_an_unknown_ending_asks_for_the_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Give --format csv\|parquet\|jsonl"):
        read_rows("rows.xlsx", None)


def test_columns_that_the_model_does_not_take_stay_out_of_the_request() -> None:
    rows = ROWS.append_column("rating", pa.array([4.0, 2.0]))
    assert select(rows, ["movieId", "userId"]).column_names == ["movieId", "userId"]
    with pytest.raises(DataError, match=r"lack \['age'\]. Expected \['userId', 'age'\]"):
        select(rows, ["userId", "age"])


def test_lists_do_not_go_into_csv(tmp_path: Path) -> None:
    rows = pa.table({"userId": [1], "tags": [[1, 2]]})
    with pytest.raises(ConfigError, match=r"CSV cannot hold \['tags'\], which are lists. Give --format jsonl"):
        write_scores(rows, np.array([0.5]), "jsonl", tmp_path / "scored.csv")
    write_scores(rows, np.array([0.5]), "jsonl", tmp_path / "scored.jsonl")
    assert json.loads((tmp_path / "scored.jsonl").read_text()) == {"userId": 1, "tags": [1, 2], "score": 0.5}
