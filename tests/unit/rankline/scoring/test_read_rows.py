"""Rows to score, read from any format and written back with scores."""

import csv as python_csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from rankline.scoring import read_rows as rows_module
from rankline.scoring.read_rows import (
    as_typed,
    format_of,
    from_options,
    missing_columns,
    output_format_of,
    read_blocks,
    select,
    stdin_as_file,
    typed_row,
)
from rankline.scoring.write_scores import check_columns, scores_to, without_formulas
from rankline.serving.client import ModelSchema
from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.schema.tensors import Tensor

ROWS = pa.table({"userId": [1, 2], "movieId": [31, -5]})


def read_rows(path: Path, format_name: str, schema: ModelSchema | None = None) -> pa.Table:
    return pa.concat_tables([rows for rows, _ in read_blocks(path, format_name, schema)])


def schema_of(*required: str, texts: Sequence[str] = (), optional: Sequence[str] = ()) -> ModelSchema:
    numbers, strings = [dict.fromkeys(names, kind) for names, kind in ((required, "int64"), (texts, "object"))]
    return ModelSchema(
        name="m",
        inputs=tuple(Tensor(name=name, dtype=dtype) for name, dtype in {**numbers, **strings}.items()),
        optional_inputs=tuple(Tensor(name=name, dtype="int64") for name in optional),
        outputs=(Tensor(name="score", dtype="float32"),),
        max_batch_size=8,
    )


def write_scores(rows: pa.Table, scores: np.ndarray, format_name: str, output: Path) -> None:
    with scores_to(output, format_name) as write:
        write(rows, {"score": scores})


def test_options_become_one_row_with_json_values() -> None:
    texts = from_options(["--userId", "1", "--name=Zoë", "--tags", "[1, 2]"])
    assert texts == {"userId": "1", "name": "Zoë", "tags": "[1, 2]"}
    assert typed_row(texts, ["name"]).to_pylist() == [{"userId": 1, "name": "Zoë", "tags": [1, 2]}]


def test_date_is_shown_as_it_was_typed() -> None:
    sent = pa.table({"when": [1717027200000000], "user": [7], "paid": [True], "gone": pa.array([None], pa.int64())})
    texts = {"when": "2024-05-30", "user": "7", "paid": "yes", "gone": ""}
    assert as_typed(sent, texts).to_pylist() == [{"when": "2024-05-30", "user": 7, "paid": True, "gone": None}]


def test_null_is_a_missing_value() -> None:
    assert typed_row({"userId": "null", "C1": "null"}, ["C1"]).to_pylist() == [{"userId": None, "C1": None}]
    assert typed_row({"userId": "", "C1": ""}, ["C1"]).to_pylist() == [{"userId": None, "C1": ""}]


@pytest.mark.parametrize("text", ["00123456", "5e104321", "true", '"a"'])
def test_text_column_takes_what_was_typed(tmp_path: Path, text: str) -> None:
    assert typed_row({"C1": text}, ["C1"]).to_pylist() == [{"C1": text}]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        python_csv.writer(file).writerows([["C1", "I1"], [text, "1"], ["", ""]])
    rows = read_rows(tmp_path / "rows.csv", "csv", schema_of("I1", texts=["C1"]))
    assert rows.to_pylist() == [{"C1": text, "I1": 1}, {"C1": None, "I1": None}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (given, "is invalid, expected column options with values")
            for given in (["userId", "1"], ["--userId"], ["--", "1"])
        ),
        (["--item", "1", "--item=2"], "--item is passed twice: '1' and '2'"),
    ],
)
def test_options_that_are_no_row_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_options(arguments)


def test_number_that_no_column_holds_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be sent as a row"):
        typed_row({"userId": "99999999999999999999"}, [])


def write(path: Path, format_name: str, rows: pa.Table = ROWS) -> None:
    if format_name == "csv":
        csv.write_csv(rows, path)
    elif format_name == "parquet":
        parquet.write_table(rows, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")


@pytest.mark.parametrize("format_name", ["csv", "parquet", "jsonl"])
def test_predict_infers_format_from_suffix_and_writes_scores(tmp_path: Path, format_name: str) -> None:
    write(tmp_path / f"rows.{format_name}", format_name)
    path, scored = tmp_path / f"rows.{format_name}", tmp_path / f"scored.{format_name}"
    assert format_of(str(path), None) == format_name
    rows = read_rows(path, format_name)
    assert rows == ROWS
    write_scores(rows, np.array([0.25, 0.5], np.float32), format_name, scored)
    assert read_rows(scored, format_name).to_pydict() == {**ROWS.to_pydict(), "score": [0.25, 0.5]}


def stdin_holds(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]  # a raw stream all the same
    monkeypatch.setattr("sys.stdin", stdin)  # the process's own input, not what is tested


@pytest.mark.parametrize("format_name", ["csv", "parquet", "jsonl"])
def test_stdin_says_which_format_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    write(tmp_path / "rows", format_name)
    stdin_holds((tmp_path / "rows").read_bytes(), monkeypatch)
    assert format_of("-", None) == format_name
    with stdin_as_file(format_name) as path:
        assert read_rows(path, format_name) == ROWS


def test_fault_in_stdin_names_no_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_holds(b"user\n1\n", monkeypatch)
    with pytest.raises(DataError, match=r"^stdin, row 1: not read$"), stdin_as_file("csv") as path:
        assert path.read_bytes() == b"user\n1\n"
        raise DataError(f"{path}, row 1: not read")


QUOTED = 'id,size\n1,"12\n' + "".join(f"{n},{n}\n" for n in range(2, 9)) + '9,7"\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"{", r"a\.jsonl cannot be read as"),
        ("a.csv", b"a,b\n1\n", r"a\.csv cannot be read as"),
        ("a.csv", QUOTED.encode(), r"a\.csv, line 2: a quote opens a cell of column 'size'"),
        ("a.csv", "id,size\n1,2\n".encode("utf-16"), r"a\.csv is utf-16.* text, expected UTF-8"),
    ],
)
def test_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name, format_of(str(tmp_path / name), None))


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda: format_of("none.csv", None), DataError, r"none\.csv does not exist\. Pass a file that contains rows"),
        (lambda: format_of("rows.csv", "xls"), ConfigError, "--format is 'xls'. Available: csv, parquet, jsonl"),
        (lambda: format_of(__file__, None), ConfigError, r"format of '.*\.py' is unknown"),
        (lambda: output_format_of(Path("out.xlsx"), None, "csv"), ConfigError, r"format of 'out\.xlsx' is unknown"),
    ],
)
def test_unknown_format_is_refused(ask: Callable[[], str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ask()


def test_ending_names_the_format_where_there_is_one_and_the_option_where_not(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", "parquet")
    write(tmp_path / "rows", "csv")
    assert format_of(str(tmp_path / "rows.parquet"), "csv") == "parquet"
    assert format_of(str(tmp_path / "rows"), "csv") == "csv"
    assert output_format_of(None, "csv", "parquet") == output_format_of(tmp_path / "out", "csv", "jsonl") == "csv"
    assert output_format_of(tmp_path / "out.jsonl", "csv", "parquet") == "jsonl"
    assert output_format_of(Path("out.txt"), "jsonl", "csv") == "jsonl"
    assert output_format_of(tmp_path / "out", None, "parquet") == output_format_of(None, None, "parquet") == "parquet"


def test_parquet_does_not_go_to_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(ConfigError, match=r"Parquet cannot be written to a terminal. Pass --output FILE, or --format"):
        output_format_of(None, None, "parquet")
    assert output_format_of(None, "csv", "parquet") == "csv"
    assert output_format_of(tmp_path / "out.parquet", None, "csv") == "parquet"


def test_columns_that_the_model_does_not_take_stay_out_of_the_request() -> None:
    rows = ROWS.append_column("rating", pa.array([4.0, 2.0]))
    assert select(rows, schema_of("movieId", "userId")).column_names == ["userId", "movieId"]
    assert select(rows, schema_of("movieId", optional=("rating", "age"))).column_names == ["movieId", "rating"]
    with pytest.raises(DataError, match=r"columns \['age'\]\. Expected \['userId', 'age'\]"):
        select(rows, schema_of("userId", "age"))


def test_column_that_may_be_missing_is_not_missed_in_silence() -> None:
    assert missing_columns(["user", "age"], ["age"], ["user", "age", "note"]) == ""
    assert missing_columns(["user"], ["age"], ["user"]) == "scored as missing because the rows have no 'age'"
    some = missing_columns([], [f"I{n}" for n in range(1, 9)], ["label"])
    assert some == "scored as missing because the rows have no 'I1', 'I2', 'I3', 'I4', 'I5' and 3 more"
    with pytest.raises(DataError, match=r"exported model requires 'age', which the recipe no longer reads\. Use the"):
        missing_columns(["user"], ["age"], ["user", "age"])
    hint = r"Did you mean 'minutes' by 'minuts'\? If a column of the rows is misspelled, rename"
    with pytest.raises(DataError, match=rf"the rows have no column 'minutes'\. {hint}"):
        missing_columns(["user"], ["minutes"], ["user", "minuts"])


def test_lists_do_not_go_into_csv(tmp_path: Path) -> None:
    rows = pa.table({"userId": [1], "tags": [[1, 2]]})
    with pytest.raises(
        ConfigError, match=r"CSV cannot represent the list columns \['tags'\]\. Pass --output FILE\.jsonl"
    ):
        check_columns(rows, ["score"], "csv")
    check_columns(rows, ["score"], "jsonl")
    write_scores(rows, np.array([0.5]), "jsonl", tmp_path / "scored.jsonl")
    assert json.loads((tmp_path / "scored.jsonl").read_text()) == {"userId": 1, "tags": [1, 2], "score": 0.5}


def test_dates_and_decimals_become_texts_in_json_lines(tmp_path: Path) -> None:
    rows = pa.table({"day": [date(2024, 5, 1)], "at": [datetime(2024, 5, 1, 12, 30)], "price": [Decimal("1.50")]})
    write_scores(rows, np.array([0.5]), "jsonl", tmp_path / "scored.jsonl")
    expected = {"day": "2024-05-01", "at": "2024-05-01 12:30:00", "price": "1.50", "score": 0.5}
    assert json.loads((tmp_path / "scored.jsonl").read_text()) == expected


def test_scores_of_several_candidates_are_lists(tmp_path: Path) -> None:
    rows = pa.table({"item": [["a", "b"], ["c", "d"]]})
    write_scores(rows, np.array([[0.5, 0.25], [1.0, 0.0]]), "jsonl", tmp_path / "scored.jsonl")
    scored = [json.loads(line)["score"] for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert scored == [[0.5, 0.25], [1.0, 0.0]]


@pytest.mark.parametrize("format_name", ["csv", "parquet", "jsonl"])
def test_rows_come_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    monkeypatch.setattr(rows_module, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(rows_module, "_BLOCK_ROWS", 10)
    table = pa.table({"x": range(95), "text": [f"é{i}" for i in range(95)]})
    path = tmp_path / f"rows.{format_name}"
    write(path, format_name, table)
    schema = schema_of("x", texts=["text"])
    blocks = list(read_blocks(path, format_name, schema))
    assert len(blocks) > 5
    assert pa.concat_tables([rows for rows, _ in blocks]) == table
    assert [done for _, done in blocks] == sorted(done for _, done in blocks)
    assert blocks[-1][1] == 1.0
    with scores_to(tmp_path / f"scored.{format_name}", format_name) as write_block:
        for rows, _ in blocks:
            write_block(rows, {"score": np.zeros(rows.num_rows)})
    assert read_rows(tmp_path / f"scored.{format_name}", format_name, schema).drop(["score"]) == table


def test_block_of_json_may_have_other_types_than_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_BLOCK_BYTES", 1)
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n{"x": 1.5}\n{"x": null}\n')
    blocks = list(read_blocks(tmp_path / "rows.jsonl", "jsonl"))
    assert [rows.to_pylist() for rows, _ in blocks] == [[{"x": 1}], [{"x": 1.5}], [{"x": None}]]


def test_cell_of_several_lines_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one", "two\nlines", 'three\n"\nlines'] * 20
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        python_csv.writer(file).writerows([["x", "text"], *enumerate(texts)])
    for size in (16, 1 << 20):
        monkeypatch.setattr(rows_module, "_BLOCK_BYTES", size)
        assert read_rows(tmp_path / "rows.csv", "csv").to_pydict() == {"x": list(range(60)), "text": texts}


def test_header_without_rows_stays_one(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,y\n")
    ((rows, _),) = read_blocks(tmp_path / "rows.csv", "csv", schema_of("x", texts=["y"]))
    assert rows.num_rows == 0
    write_scores(rows, np.zeros(0), "csv", tmp_path / "scored.csv")
    assert (tmp_path / "scored.csv").read_text() == '"x","y","score"\n'


def test_types_that_change_do_not_go_into_parquet(tmp_path: Path) -> None:
    def change() -> None:
        with scores_to(tmp_path / "scored.parquet", "parquet") as write:
            write(pa.table({"x": [1]}), {"score": np.zeros(1)})
            write(pa.table({"x": ["a"]}), {"score": np.zeros(1)})

    with pytest.raises(ConfigError, match="do not match the types of the first rows.*--format jsonl"):
        change()
    assert list(tmp_path.iterdir()) == []


def test_columns_that_the_model_does_not_take_are_written_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,zip,price,note,n\n7,00501,1.50,,3\n8,10001,2,a,\n")
    rows = read_rows(tmp_path / "rows.csv", "csv", schema_of("x"))
    assert rows.to_pylist() == [
        {"x": 7, "zip": "00501", "price": "1.50", "note": None, "n": 3},
        {"x": 8, "zip": "10001", "price": "2", "note": "a", "n": None},
    ]
    (tmp_path / "rows.csv").write_text("x,a,a\n7,1,03\n")
    rows = read_rows(tmp_path / "rows.csv", "csv", schema_of("x"))
    assert (rows.column_names, [column.to_pylist() for column in rows.columns]) == (["x", "a", "a"], [[7], [1], ["03"]])


@pytest.mark.parametrize("format_name", ["csv", "parquet"])
def test_scores_stay_beside_their_rows_where_the_order_of_columns_changes(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / f"scored.{format_name}"
    blocks = [{"a": [1], "b": [2]}, {"b": [4], "a": [3]}, {"b": [6]}]
    with scores_to(path, format_name) as write:
        for number, block in enumerate(blocks):
            write(pa.table(block), {"score": np.array([number / 4])})
    assert read_rows(path, format_name).to_pydict() == {"a": [1, 3, None], "b": [2, 4, 6], "score": [0.0, 0.25, 0.5]}
    with pytest.raises(ConfigError, match=r"\['c'\], which the first rows lack"), scores_to(path, format_name) as write:
        write(pa.table({"a": [1]}), {"score": np.zeros(1)})
        write(pa.table({"a": [1], "c": [1]}), {"score": np.zeros(1)})


def test_score_does_not_overwrite_a_column() -> None:
    with pytest.raises(ConfigError, match="already contain a column 'score'"):
        check_columns(pa.table({"x": [1], "score": [0.5]}), ["score"], "csv")


@pytest.mark.parametrize(("delimiter", "encoding"), [("|", "utf-8"), ("\t", "utf-8-sig"), (";", "latin-1")])
def test_csv_is_read_as_it_is_written(delimiter: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"id{delimiter}stadt\n1{delimiter}Köln\n2{delimiter}a,b\n", encoding=encoding)
    assert read_rows(path, "csv").to_pydict() == {"id": [1, 2], "stadt": ["Köln", "a,b"]}


FORMULAS = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd()", "-1e5+cmd()", "\t=1", "-", "+", "-30-"]
PLAIN = ["-5", "+1.5", "-1e-3", "a=b", "", "1-2", "'=1", None, "é"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_spreadsheet_runs_no_text_of_a_csv(kind: pa.DataType) -> None:
    rows = pa.table({"=name": pa.array(FORMULAS + PLAIN).cast(kind)})
    shown = without_formulas(rows)
    assert shown.column_names == ["'=name"]
    assert shown.column(0).to_pylist() == [f"'{text}" for text in FORMULAS] + PLAIN


def test_csv_of_scores_has_no_formula_and_its_numbers(tmp_path) -> None:
    rows = pa.table({"title": ["=1+1", "plain"], "x": [-1, 2]})
    with scores_to(tmp_path / "out.csv", "csv") as write:
        for _ in range(2):
            write(rows, {"score": np.array([-0.5, 0.25])})
    found = csv.read_csv(tmp_path / "out.csv").to_pydict()
    assert found == {"title": ["'=1+1", "plain"] * 2, "x": [-1, 2] * 2, "score": [-0.5, 0.25] * 2}
