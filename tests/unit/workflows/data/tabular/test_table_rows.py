"""Values of any type as a table has them, in files of each format; and what is refused."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.data.tabular.cast import ValueFaultError, typed_column, typed_label
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.files import _BLOCK_BYTES
from rankline.workflows.data.tabular.reader import TableRequests, names_of, read_table, safe_names
from rankline.workflows.preprocess.raw import RawData, StreamedRows

ROWS = {"id": ["a", "b", None, "a,b"], "n": [1, None, 3, 4], "label": [0, 1, 1, 0]}
COLUMNS = {"id": ColumnConfig(role="id"), "n": ColumnConfig(type="int", role="numeric")}


def table_config(*files: str, **choices: Any) -> TableConfig:
    given: dict[str, Any] = {"columns": COLUMNS, "labels": {"label": LabelConfig()}} | choices
    data = given.pop("data", {})
    return TableConfig(data=FilesConfig(files=files, **data), **given)


def rows_of(raw: RawData) -> dict[str, list[Any]]:
    """All rows, read as one and shard by shard."""
    assert isinstance(raw.rows, StreamedRows)
    whole = pa.Table.from_batches(raw.rows.batches(), raw.rows.schema)
    apart = pa.Table.from_batches([b for shard in raw.rows.shards for b in shard.batches()], raw.rows.schema)
    assert whole.equals(apart)
    assert len(raw.rows) == sum(shard.num_rows for shard in raw.rows.shards)
    columns: dict[str, list[Any]] = whole.to_pydict()
    return columns


def write_csv(path: Path) -> None:
    pa_csv.write_csv(pa.table(ROWS), path)


def write_gzip(path: Path) -> None:
    lines = [
        ",".join(ROWS),
        *(f'"{i or ""}",{"" if n is None else n},{y}' for i, n, y in zip(*ROWS.values(), strict=True)),
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table(ROWS), path, row_group_size=1)


def write_json(path: Path) -> None:
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    path.write_text("\n".join(json.dumps({k: v for k, v in row.items() if v is not None}) for row in rows))


@pytest.mark.parametrize(
    ("name", "write"),
    [("rows.csv", write_csv), ("rows.csv.gz", write_gzip), ("rows.parquet", write_parquet), ("rows.jsonl", write_json)],
)
def test_file_formats_yield_the_same_rows(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    assert rows_of(read_table(table_config(name), tmp_path)) == ROWS
    raw, sent, done = zip(*TableRequests(table_config(name)).of_file(tmp_path / name), strict=True)
    assert pa.concat_tables(sent).to_pydict() == {name: ROWS[name] for name in COLUMNS}
    assert raw[0].column_names == list(ROWS)
    assert done[-1] == 1


def test_whole_numbers_that_pandas_wrote_beside_missing_ones_are_read_wherever_they_begin(tmp_path: Path) -> None:
    num_rows = 400_000  # several blocks of the reader, of which the last has the first 7.0
    numbers = [str(row) for row in range(num_rows - 2)] + ["7.0", ""]
    (tmp_path / "rows.csv").write_text("id,n,label,other\n" + "".join(f"long name,{n},0,{n}\n" for n in numbers))
    assert (tmp_path / "rows.csv").stat().st_size > 2 * _BLOCK_BYTES
    config = table_config("rows.csv")
    assert rows_of(read_table(config, tmp_path))["n"][-3:] == [num_rows - 3, 7, None]
    raw, sent, _ = zip(*TableRequests(config).of_file(tmp_path / "rows.csv"), strict=True)
    for blocks in (raw, sent):
        assert [n for block in blocks for n in block["n"].to_pylist()] == [*range(num_rows - 2), 7, None]
    assert raw[-1]["other"].to_pylist()[-2:] == ["7.0", None]  # no column of the model: as it is written


def test_delimiter_encoding_header_and_missing_texts_are_choices(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes("é;?;1\nb;2;0\n".encode("latin-1"))
    columns = {"column_1": ColumnConfig(role="id"), "column_2": ColumnConfig(type="int", role="numeric")}
    config = table_config(
        "rows.txt",
        columns=columns,
        labels={"column_3": LabelConfig()},
        data={"delimiter": ";", "header": False, "encoding": "latin-1", "missing": ("", "?")},
    )
    assert rows_of(read_table(config, tmp_path))["column_1"] == ["é", "b"]
    assert rows_of(read_table(config, tmp_path))["column_2"] == [None, 2]


def test_names_are_made_safe_and_stay_apart() -> None:
    assert safe_names(["a b", "a?b", "größe", "日本", "1st", "x__values", "a_b"]) == {
        "a b": "a_b", "a?b": "a_b_2", "größe": "gr_e", "日本": "column", "1st": "c_1st", "x__values": "x_values",
        "a_b": "a_b_3",
    }  # fmt: skip


TIMES = ColumnConfig(type="timestamp", role="timestamp", parts=("hour", "day"))
VECTOR = ColumnConfig(type="float", role="vector", length=2)
NUMBER = ColumnConfig(type="float", role="numeric")


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"ts": TIMES, "v": VECTOR, "n": NUMBER}, ["ts", "v", "n", "y"]),
        ({"ts": TIMES, "ts_hour": NUMBER}, ["ts_2", "ts_hour", "y"]),
        ({"t": TIMES, "t_2": TIMES, "t_2_day": NUMBER, "t_hour": NUMBER}, ["t_3", "t_2_2", "t_2_day", "t_hour", "y"]),
        ({"v": VECTOR, "v_0": VECTOR, "v_0_0": NUMBER}, ["v_2", "v_0_2", "v_0_0", "y"]),
        ({"ts": TIMES, "y_hour": replace(TIMES, parts=("day",))}, ["ts", "y_hour", "y"]),
        ({"ts": replace(TIMES, role="ignored"), "ts_hour": NUMBER}, ["ts", "ts_hour", "y"]),
    ],
)
def test_parts_of_a_column_have_names_of_their_own(columns: dict[str, ColumnConfig], names: list[str]) -> None:
    config = TableConfig(data=FilesConfig(files=("f",)), columns=columns, labels={"y": LabelConfig()})
    assert list(names_of(config).values()) == names


REFUSED = {
    "an empty file": ("", "is empty, expected a header and rows"),
    "a header only": ("id,n,label\n", "no rows found, only a header"),
    "a name twice": ("id,n,n,label\na,1,1,0\n", "more than one column named 'n'"),
    "a column missing": ("id,m,label\na,1,0\n", "has no column 'n'. It has id, m, label"),
    "text among numbers": ("id,n,label\na,1,0\nb,two,1\n", "row 2: column 'n' is 'two', expected a 64-bit integer"),
    "too many cells": ("id,n,label\na,1,0\nb,2,1,9\n", "rows.csv, line 3: 4 cells, expected 3 as in the header"),
    "other encoding": ("id,n,label\né,1,0\n", "is not utf-8 text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_file_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    (tmp_path / "rows.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError) as refusal:
        rows_of(read_table(table_config("rows.csv"), tmp_path))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert str(tmp_path / "rows.csv") in str(refusal.value)


def test_json_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "n": 1, "label": 0}\n{"id": \n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2 is not JSON"):
        rows_of(read_table(table_config("rows.jsonl"), tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "n": 1, "label": 0}\n{"id": 7, "n": "x", "label": 0}\n')
    with pytest.raises(DataError, match="row 2: column 'n' is 'x', expected a 64-bit integer"):
        rows_of(read_table(table_config("rows.jsonl"), tmp_path))


def test_list_in_some_lines_of_json_and_a_text_in_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"tags": "a|b"}\n{"tags": null}\n{"tags": ["a"]}\n')
    config = table_config("rows.jsonl", columns={"tags": ColumnConfig(role="multihot")})
    with pytest.raises(
        DataError, match=r"line 3: 'tags' is a list here but not on other lines. Write a list on every line"
    ):
        list(TableRequests(config).of_file(tmp_path / "rows.jsonl"))
    for typed in ('["a"]', '["a|b"]', "a; b", "a,b"):
        with pytest.raises(DataError, match=r"expected elements separated by '\|', such as 'a\|b'; for a single"):
            TableRequests(config).of_texts({"tags": typed})
    assert TableRequests(config).of_texts({"tags": "a,b|"})["tags"].to_pylist() == [["a,b"]]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("rows.csv", "n,label\n5.00E+05,0\n500000,1\n"),
        ("rows.jsonl", '{"n": 5.00E+05, "label": 0}\n{"n": 500000, "label": 1}\n'),
        ("rows.jsonl", '{"n": "5.00E+05", "label": 0}\n{"n": "500000", "label": 1}\n'),
    ],
)
def test_id_in_scientific_notation_is_the_same_in_training_and_requests(tmp_path: Path, name: str, lines: str) -> None:
    (tmp_path / name).write_text(lines)
    config = table_config(name, columns={"n": ColumnConfig(type="int", role="id")})
    requests = TableRequests(config)
    ((_, sent, _),) = requests.of_file(tmp_path / name)
    assert rows_of(read_table(config, tmp_path))["n"] == sent["n"].to_pylist() == [500_000, 500_000]
    assert requests.of_texts({"n": "5.00E+05"})["n"].to_pylist() == [500_000]


def test_files_that_are_not_there_or_of_no_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file, directory or pattern"):
        read_table(table_config("none.csv"), tmp_path)
    (tmp_path / "rows.xls").write_text("x")
    with pytest.raises(ConfigError, match="expected csv, parquet or jsonl"):
        read_table(table_config("rows.xls"), tmp_path)
    (tmp_path / "rows.parquet").write_text("not parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_table(table_config("rows.parquet"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no CSV, Parquet or JSON lines"):
        read_table(table_config("empty"), tmp_path)


def test_row_of_texts_is_read_as_one_of_a_file() -> None:
    requests = TableRequests(table_config("rows.csv"))
    assert requests.of_texts({"n": "7", "id": ""}).to_pylist() == [{"id": None, "n": 7}]
    with pytest.raises(DataError, match="the row lacks n\\."):
        requests.of_texts({"id": "a"})
    with pytest.raises(DataError, match="m are not columns of the model"):
        requests.of_texts({"id": "a", "m": "1"})
    with pytest.raises(DataError, match="column 'n' is 'x', expected a 64-bit integer"):
        requests.of_texts({"id": "a", "n": "x"})
    assert requests.of_texts({"n": "7"}, optional=["id"]).to_pylist() == [{"n": 7}]


def test_file_to_score_that_lacks_a_feature_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("id;N\na;1\n")
    requests = TableRequests(table_config("rows.csv", data={"delimiter": ";"}))
    assert requests.format_of(tmp_path / "new.tsv") == "csv"
    with pytest.raises(DataError, match=r"new\.tsv has no column 'n'\. It has id, N.*Did you mean 'N' by 'n'"):
        next(requests.of_file(tmp_path / "new.tsv"))
    ((rows, sent, done),) = requests.of_file(tmp_path / "new.tsv", optional=["n"])
    assert (rows.column_names, sent.to_pylist(), done) == (["id", "N"], [{"id": "a"}], 1)


def test_choices_that_read_rows_otherwise_are_named(tmp_path: Path) -> None:
    before = table_config("rows.csv", columns=COLUMNS | {"tags": ColumnConfig(role="multihot")})
    same = replace(
        before,
        labels={"other": LabelConfig()},
        columns=before.columns | {"n": ColumnConfig(type="int", role="numeric", scale="log")},
    )
    assert TableRequests(same).incompatible_changes(before.choices) == []
    other = table_config(
        "rows.csv", columns={"tags": ColumnConfig(role="multihot", separator=";")}, data={"missing": ("", "0")}
    )
    assert TableRequests(other).incompatible_changes(before.choices) == [
        "columns.id",
        "columns.n",
        "columns.tags",
        "data.missing",
    ]


NOON = 12 * 3_600_000_000
DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("values", "config", "expected"),
    [
        (pa.array([1, None, 3], pa.int8()), {"type": "int"}, [1, None, 3]),
        (pa.array([2**63 - 1, None], pa.uint64()), {"type": "int"}, [2**63 - 1, None]),
        (pa.array(["7", " 8 ", None]), {"type": "int"}, [7, 8, None]),
        (pa.array(["36.0", None, "7"]), {"type": "int"}, [36, None, 7]),  # as pandas writes whole numbers with gaps
        (pa.array(["5.00E+05", "500000", "-2.5e1", "0e99"]), {"type": "int"}, [500_000, 500_000, -25, 0]),
        (pa.array([f"{2**63 - 1}.0", "-9.223372036854775808E18"]), {"type": "int"}, [2**63 - 1, -(2**63)]),
        (pa.array(["+8", "1e3", "-3."]), {"type": "int"}, [8, 1000, -3]),
        (pa.array(["5e5|7", None]), {"role": "multihot", "type": "int"}, [[500_000, 7], None]),
        (pa.array(["1.5", "-2e3", "inf"]), {"type": "float", "role": "numeric"}, None),
        (pa.array([Decimal("1.25"), None]), {"type": "float", "role": "numeric"}, [1.25, None]),
        (pa.array([True, None, False]), {"type": "bool"}, [1, None, 0]),
        (pa.array(["Yes", "no", None, "T"]), {"type": "bool"}, [1, 0, None, 1]),
        (pa.array(["a", None, "a"]).dictionary_encode(), {}, ["a", None, "a"]),
        (pa.array([5, None]), {}, ["5", None]),
        (pa.array([36.0, 36.5, float("nan"), 1e300]), {}, ["36", "36.5", None, "1e+300"]),  # each by itself
        (pa.array([date(2024, 1, 2)]), {}, ["2024-01-02"]),
        (pa.array(["a| b||", "", None]), {"role": "multihot"}, [["a", "b"], [], None]),
        (pa.array([["x", None, "y"], [], None]), {"role": "multihot"}, [["x", "y"], [], None]),
        (pa.array([[1, 2], None], pa.large_list(pa.int16())), {"role": "multihot", "type": "int"}, [[1, 2], None]),
    ],
)
def test_values_become_those_of_the_type(values: pa.Array, config: dict[str, Any], expected: list[Any] | None) -> None:
    column = ColumnConfig(**config)
    if expected is None:  # a text that is no finite number
        assert typed_column(values, column).to_pylist() == [1.5, -2000.0, None]
    else:
        assert typed_column(values, column).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "form", "expected"),
    [
        (pa.array(["1970-01-02", None]), "iso", [DAY, None]),
        (pa.array(["1970-01-01T12:00:00Z", "1970-01-01 14:00:00+02:00"]), "iso", [NOON, NOON]),
        (pa.array(["1970-01-01 12:00:00.123456789"]), "iso", [NOON + 123456]),
        (pa.array(["2/1/1970"]), "%d/%m/%Y", [DAY]),
        (pa.array([43200, None]), "epoch_s", [NOON, None]),
        (pa.array([datetime(1970, 1, 1, 12)], pa.timestamp("ns")), "iso", [NOON]),
        (pa.array([datetime(1970, 1, 1, 12, tzinfo=timezone.utc)], pa.timestamp("s", "Asia/Tokyo")), "iso", [NOON]),
    ],
)
def test_times_become_microseconds_in_utc(values: pa.Array, form: str, expected: list[int | None]) -> None:
    column = ColumnConfig(type="timestamp", role="timestamp", format=form, parts=("hour",))
    assert typed_column(values, column).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "config", "row", "expected"),
    [
        (pa.array(["1", "x", "3"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["1.0", "2.50"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["5e5", "25e-1"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["5e5", "9.223372036854775808E18"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["5", "9223372036854775808"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["5e5", "1e99999999999999999999"]), {"type": "int"}, 1, "a 64-bit integer"),
        (pa.array([1, 2**64 - 1], pa.uint64()), {"type": "int"}, 1, "64-bit"),
        (pa.array(["1", "2", "n/a"]), {"type": "float", "role": "numeric"}, 2, "a number"),
        (pa.array(["yes", "maybe"]), {"type": "bool"}, 1, "true or false"),
        (pa.array([1]), {"role": "multihot"}, 0, "a list"),
        (pa.array([["1"], ["2", "x"]]), {"role": "multihot", "type": "int"}, 1, "a 64-bit integer"),
        (pa.array(["1|2", "3,4"]), {"role": "multihot", "type": "int"}, 1, "as type int requires, in a list separated"),
        (
            pa.array(["2024-01-01", "01/02/2024"]),
            {"type": "timestamp", "role": "timestamp", "parts": ("day",)},
            1,
            "ISO 8601",
        ),
    ],
)
def test_value_of_another_type_is_found_by_row(
    values: pa.Array, config: dict[str, Any], row: int, expected: str
) -> None:
    with pytest.raises(ValueFaultError) as fault:
        typed_column(values, ColumnConfig(**config))
    assert fault.value.row == row
    assert expected in fault.value.expected


@pytest.mark.parametrize(
    ("values", "config", "expected"),
    [
        (pa.array([0, 1, None]), {}, [0, 1, None]),
        (pa.array(["yes", "no"]), {}, [1, 0]),
        (pa.array(["<=50K", ">50K"]), {"classes": ("<=50K", ">50K")}, [0, 1]),
        (pa.array(["c", " a", None]), {"task": "multiclass", "classes": ("a", "b", "c")}, [2, 0, None]),
        (pa.array(["1.5", "2"]), {"task": "regression"}, [1.5, 2.0]),
        (pa.array([float("nan"), 2.0, None]), {"task": "regression"}, [None, 2.0, None]),
        (pa.array([float("nan"), None]), {}, [None, None]),
    ],
)
def test_labels_become_numbers(values: pa.Array, config: dict[str, Any], expected: list[Any]) -> None:
    assert typed_label(values, LabelConfig(**config)).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "config", "row", "expected"),
    [
        (pa.array([0, 1, 2]), {}, 2, "0 or 1"),
        (pa.array(["a", "z"]), {"task": "multiclass", "classes": ("a", "b")}, 1, "one of its 2 classes: a, b"),
        (pa.array(["1", "many"]), {"task": "regression"}, 1, "a finite 32-bit number"),
        (pa.array(["1", "Infinity"]), {"task": "regression"}, 1, "a finite 32-bit number"),
        (pa.array([None, 1e39]), {"task": "regression"}, 1, "a finite 32-bit number"),
        (pa.array([0.0, float("inf")]), {}, 1, "0 or 1"),
    ],
)
def test_label_of_another_task_is_refused(values: pa.Array, config: dict[str, Any], row: int, expected: str) -> None:
    with pytest.raises(ValueFaultError) as fault:
        typed_label(values, LabelConfig(**config))
    assert fault.value.row == row
    assert expected in fault.value.expected


TIME: Any = {"type": "timestamp", "role": "timestamp", "parts": ("year",)}


@pytest.mark.parametrize(
    ("texts", "column"),
    [
        ("2017-01-20", ColumnConfig(**TIME)),
        ("2017-01-20T04:05:06.000007", ColumnConfig(**TIME)),
        ("1969-12-31T23:59:59", ColumnConfig(**TIME)),
        ("1484870400.5", ColumnConfig(**TIME, format="epoch_s")),
        ("1484870400123456", ColumnConfig(**TIME, format="epoch_us")),
        ("20/01/2017 04:05", ColumnConfig(**TIME, format="%d/%m/%Y %H:%M")),
        ("a;b", ColumnConfig(role="multihot", separator=";")),
        ("a;", ColumnConfig(role="multihot", separator=";")),
        ("1", ColumnConfig(type="bool", role="numeric")),
        ("2.5", ColumnConfig(type="float", role="numeric")),
        ("", ColumnConfig(type="int", role="numeric")),
    ],
)
def test_request_row_as_texts_is_read_again(texts: str, column: ColumnConfig) -> None:
    requests = TableRequests(table_config("rows.csv", columns={"x": column}))
    (row,) = requests.of_texts({"x": texts}).to_pylist()
    assert requests.as_texts(row) == {"x": texts}
