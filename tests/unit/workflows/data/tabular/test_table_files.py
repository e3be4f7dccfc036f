"""Files as other programs write them: what is read of them, and what is refused before a row is lost."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.core.errors import ConfigError, DataError
from rankline.workflows.data.tabular import files as files_module
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig, TableConfig
from rankline.workflows.data.tabular.files import find_files, names_in, scan
from rankline.workflows.data.tabular.reader import TableRequests, read_table

COLUMNS = {
    "user": ColumnConfig(type="int", role="id"),
    "plan": ColumnConfig(),
    "fee": ColumnConfig(type="float", role="numeric"),
}
HEADER = "user,plan,fee,label\n"


def config_of(
    *files: str, columns: dict[str, ColumnConfig] = COLUMNS, label: str = "label", **data: Any
) -> TableConfig:
    return TableConfig(data=FilesConfig(files=files, **data), columns=columns, labels={label: LabelConfig()})


def rows_in(directory: Path, config: TableConfig) -> dict[str, list[Any]]:
    """Read all rows as they are trained on, and check that as many were counted."""
    raw = read_table(config, directory)
    table = pa.Table.from_batches(raw.rows.batches(), raw.rows.schema)  # type: ignore[union-attr]
    assert len(raw.rows) == table.num_rows
    rows: dict[str, list[Any]] = table.to_pydict()
    return rows


def read_all(path: Path) -> None:
    """Read a CSV file as `init` does, knowing nothing about it."""
    config = FilesConfig(files=(path.name,), format="csv")
    types = dict.fromkeys(names_in(path, config), pa.string())
    for extent in scan([path], config).extents:
        try:
            list(files_module.read(extent, config, types))
        except files_module.READ_ERRORS as error:
            raise files_module.unreadable(path, error, config) from None


def lines_of(plans: Sequence[str]) -> str:
    """A CSV file of some plans, with a header."""
    return HEADER + "".join(f"{n},{plan},{n}.5,{n % 2}\n" for n, plan in enumerate(plans))


WHOLE = {
    "quotes inside": ['TV 40"', '5" and 6"', "pro"],
    "text behind a quotation": ['"Swing it" magistern', "pro", '"Swing it" again'],
    "doubled quotes": ['"say ""hi"""', "pro", '""""'],
    "line ends": ['"two\nlines"', "pro", '"one, two\r\nthree, four\nfive"', "pro"],
    "quoted rows in a cell": ['"x\n1,pro,1.5\n2,pro"', "pro"],
}


@pytest.mark.parametrize("case", WHOLE)
def test_quoted_cells_hold_what_they_may(tmp_path: Path, case: str) -> None:
    plans = WHOLE[case]
    (tmp_path / "t.csv").write_text(lines_of(plans), newline="")
    expected = [plan if plan[0] != '"' else plan.rpartition('"')[0][1:].replace('""', '"') for plan in plans]
    if case == "text behind a quotation":
        expected = ["Swing it magistern", "pro", "Swing it again"]
    rows = rows_in(tmp_path, config_of("t.csv"))
    assert rows["plan"] == expected
    assert rows["user"] == list(range(len(plans)))


def plans_with(**odd: str) -> list[str]:
    return [odd.get(f"_{n}", "pro") for n in range(60)]


STRAY = {
    "one": (lines_of(plans_with(_20='"pro')), r"line 22: .*quote"),
    "one in the last column": (
        "user,fee,label,plan\n" + "".join("0,1.5,0," + '"' * (n == 7) + "pro\n" for n in range(30)), "line 9: .*quote"
    ),
    "one that opens and one that closes": (lines_of(plans_with(_10='"pro', _12='TV 40"')), "line 12: .* 2 more"),
    "two beside cells that are right": (
        lines_of(plans_with(_2='"two\nlines"', _3='"a,b"', _10='"pro', _12='"pro')), "line 13: a quote opens"
    ),
    "in the header": ('"user,plan,fee,label\n1,pro,2.5,0\n', "line 1: a quote in the header is not closed"),
    "a cell without end": (lines_of(plans_with(_20='"pro' + "x" * 5_000_000)), "line 22: a cell has a quote that"),
    "a comment before the header": ("# from here\n" + lines_of(["pro"]), "line 2: 4 cells, expected 1 .*'# from here'"),
    "Excel's note": ("sep=;\n" + lines_of(["pro"]).replace(",", ";"), "line 1: 'sep=;' is a directive for Excel"),
    "zero bytes": (lines_of(["pro"]).replace("", "\0"), "contains zero bytes, as UTF-16 does"),
}  # fmt: skip


@pytest.mark.parametrize("case", STRAY)
def test_quote_that_is_not_closed_loses_no_rows(tmp_path: Path, case: str) -> None:
    content, message = STRAY[case]
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=rf"t\.csv.*{message}") as refusal:
        read_all(tmp_path / "t.csv")
    assert "\n" not in str(refusal.value)


def test_csv_without_quoting_reads_quotes_as_characters(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(lines_of(plans_with(_10='"pro', _40='"pro')))
    rows = rows_in(tmp_path, config_of("t.csv", quote="none"))
    assert rows["plan"] == plans_with(_10='"pro', _40='"pro')
    choices = config_of("t.csv", quote="none").choices
    assert TableRequests(config_of("t.csv")).incompatible_changes(choices) == ["data.quote"]
    with pytest.raises(ConfigError, match="expected one ASCII character"):
        FilesConfig(files=("t.csv",), delimiter='"')


def test_names_may_be_missing_or_hold_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('\n"Amount\n(USD)",,, ,label\n1.5,a,b,c,1\n\n2.5,,,,0\n')
    names = ["Amount\n(USD)", "column_2", "column_3", "column_4", "label"]
    assert names_in(tmp_path / "t.csv", FilesConfig(files=("t.csv",), format="csv")) == names
    columns = {name: ColumnConfig() for name in names[:2]}
    rows = rows_in(tmp_path, config_of("t.csv", columns=columns))
    assert rows == {"Amount\n(USD)": ["1.5", "2.5"], "column_2": ["a", None], "label": [1.0, 0.0]}


def test_file_with_quotes_is_cut_if_no_cell_spans_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_BLOCK_BYTES", 200)
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "t.csv").write_text(lines_of(['"a,b"', "pro"] * 50).replace("\n", end), newline="")
        found = scan([tmp_path / "t.csv"], FilesConfig(files=("t.csv",), format="csv"), shard_bytes=300)
        assert len(found.extents) > 3
        monkeypatch.setattr(files_module, "SHARD_BYTES", 300)
        assert rows_in(tmp_path, config_of("t.csv"))["user"] == list(range(100))


@pytest.mark.parametrize(
    ("encoding", "is_packed"),
    [("utf-16", False), ("utf-16-be", True), ("utf-32", False), ("utf-8-sig", True), ("cp1252", False)],
)
def test_encodings_are_read_by_their_mark_or_as_the_recipe_says(tmp_path: Path, encoding: str, is_packed: bool) -> None:
    plans = ["é", '"zwei\nZeilen"', "ü"]
    content = lines_of(plans).encode(encoding)
    name = "t.csv.gz" if is_packed else "t.csv"
    (tmp_path / name).write_bytes(gzip.compress(content) if is_packed else content)
    expected = ["é", "zwei\nZeilen", "ü"]
    given = "utf-8" if encoding in ("utf-16", "utf-32", "utf-8-sig") else encoding
    for said in {given, encoding}:
        assert rows_in(tmp_path, config_of(name, encoding=said))["plan"] == expected
    if encoding == "cp1252":
        with pytest.raises(DataError, match="unknown encoding: klingon"):
            rows_in(tmp_path, config_of(name, encoding="klingon"))


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n\r\n", "\r\r"])
def test_lines_may_end_as_on_any_system(tmp_path: Path, end: str) -> None:
    (tmp_path / "t.csv").write_text(lines_of(["pro", "a", "b"]).replace("\n", end), newline="")
    assert rows_in(tmp_path, config_of("t.csv"))["plan"] == ["pro", "a", "b"]


# --- Directories


def write_rows(path: Path, users: Sequence[int], **others: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    n = len(users)
    columns = {"user": list(users), "plan": ["pro"] * n, "fee": [1.5] * n, "label": [0] * n}
    table = pa.table(
        {
            name: others.get(name, values)
            for name, values in columns.items()
            if name not in others or others[name] is not None
        }
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        path.write_text(
            ",".join(table.column_names)
            + "\n"
            + "".join(",".join(map(str, row.values())) + "\n" for row in table.to_pylist())
        )


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_directories_of_hive_are_columns(tmp_path: Path, suffix: str) -> None:
    for plan in ("a%2Fb", "free", "__HIVE_DEFAULT_PARTITION__"):
        for label in (0, 1):
            path = tmp_path / "t" / f"label={label}" / f"plan={plan}" / f"part.{suffix}"
            write_rows(path, [label], plan=None, label=None)
    rows = rows_in(tmp_path, config_of("t"))
    assert rows == {
        "user": [0, 0, 0, 1, 1, 1],
        "plan": [None, "a/b", "free"] * 2,
        "fee": [1.5] * 6,
        "label": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0],
    }
    config = FilesConfig(files=("t",), format=suffix)  # type: ignore[arg-type]
    paths = find_files(config, tmp_path)
    assert names_in(paths[0], config) == ["label", "plan", "user", "fee"]
    assert scan(paths, config).fingerprint != scan([paths[1], paths[0], *paths[2:]], config).fingerprint
    assert rows_in(tmp_path, config_of("t/label=*/plan=*/*")) == rows
    ((raw, sent, _),) = TableRequests(config_of("t")).of_file(paths[1])
    assert raw.to_pylist() == [{"label": "0", "plan": "a/b", "user": 0, "fee": 1.5}]
    assert sent.to_pylist() == [{"user": 0, "plan": "a/b", "fee": 1.5}]
    write_rows(tmp_path / "own" / "plan=x" / f"part.{suffix}", [1])
    assert rows_in(tmp_path, config_of("own"))["plan"] == ["pro"]


def test_directory_is_searched_for_data_only(tmp_path: Path) -> None:
    write_rows(tmp_path / "sub" / "b.csv", [2])
    write_rows(tmp_path / "a.csv", [1])
    for hidden in (".ipynb_checkpoints/a.csv", "_temporary/0/a.csv", ".git/x.csv", "sub/_delta_log/0.csv", "_a.csv"):
        write_rows(tmp_path / hidden, [3])
    for output in ("mlruns/1/a.csv", "work/mlartifacts/a.csv", "venv/lib/a.csv", "model_repository/m/1/a.csv"):
        write_rows(tmp_path / output, [4])
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "model_repository" / "m" / "config.pbtxt").touch()
    manifest = {"format_version": 1, "kind": "prepared-data", "fingerprint": "0", "created_at": "", "files": {}}
    write_rows(tmp_path / "work" / "t" / "bench" / "a.csv", [5])
    (tmp_path / "work" / "t" / "prepared").mkdir()
    (tmp_path / "work" / "t" / "prepared" / "manifest.json").write_text(json.dumps(manifest))
    for files in (".", "**/*.csv", f"{tmp_path}/**/*.csv"):
        assert rows_in(tmp_path, config_of(files, format="csv"))["user"] == [1, 2]
    assert rows_in(tmp_path, config_of("work/t/bench", "_temporary/0", "_a.csv"))["user"] == [5, 3, 3]
    assert rows_in(tmp_path, config_of("*/_d*/*.csv"))["user"] == [3]
    write_rows(tmp_path / "c.parquet", [6])
    (tmp_path / "manifest.json").write_text("{}")  # of others
    assert rows_in(tmp_path, config_of(".", format="parquet"))["user"] == [6]
    with pytest.raises(DataError, match="contains no jsonl files"):
        find_files(FilesConfig(files=("sub",), format="jsonl"), tmp_path)


def test_files_come_in_natural_order_and_names_in_their_own(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        write_rows(tmp_path / "day=2" / f"part_{number}.csv", [number])
    write_rows(tmp_path / "day=10" / "part_0.csv", [20])
    for files in (".", "day=*/*.csv"):
        assert rows_in(tmp_path, config_of(files, format="csv"))["user"] == [1, 2, 10, 20]
    assert rows_in(tmp_path, config_of("day=2/part_10.csv", "day=2/part_2.csv"))["user"] == [10, 2]
    assert len(find_files(FilesConfig(files=("day=10", "day=10/part_0.csv")), tmp_path)) == 1
    write_rows(tmp_path / "other.csv", [7])
    raw = read_table(config_of("day=2", format="csv"), tmp_path, tmp_path / "other.csv")
    assert [row for batch in raw.rows.batches() for row in batch["user"].to_pylist()] == [7]  # type: ignore[union-attr]


def test_existing_file_name_is_not_a_pattern(tmp_path: Path) -> None:
    write_rows(tmp_path / "dir [x]" / "part-1.csv", [1])
    assert rows_in(tmp_path, config_of("dir [x]/part-*.csv"))["user"] == [1]
    assert rows_in(tmp_path, config_of("dir*/part-[1].csv"))["user"] == [1]
    for pattern in ("**.csv", "a**/b.csv"):
        with pytest.raises(DataError, match="is not a valid file pattern"):
            find_files(FilesConfig(files=(pattern,)), tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_column_that_a_file_lacks_is_missing_in_its_rows(tmp_path: Path, suffix: str) -> None:
    write_rows(tmp_path / "t" / f"a.{suffix}", [1, 2])
    write_rows(tmp_path / "t" / f"b.{suffix}", [3], fee=None)
    raw = read_table(config_of("t"), tmp_path)
    assert rows_in(tmp_path, config_of("t"))["fee"] == [1.5, 1.5, None]
    assert raw.noticed == {"from files without column 'fee'": 1}
    (tmp_path / "t" / f"a.{suffix}").unlink()
    with pytest.raises(DataError, match=rf"b\.{suffix} has no column 'fee'\. It has user, plan, label"):
        rows_in(tmp_path, config_of("t"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_type_that_changes_from_file_to_file_is_that_of_the_recipe(tmp_path: Path, suffix: str) -> None:
    write_rows(tmp_path / "t" / f"a.{suffix}", [1])
    write_rows(tmp_path / "t" / f"b.{suffix}", [2], user=["2"], fee=["3.5"], label=["yes"])
    write_rows(tmp_path / "t" / f"c.{suffix}", [3], plan=[7], fee=[4])
    rows = rows_in(tmp_path, config_of("t"))
    assert rows == {"user": [1, 2, 3], "plan": ["pro", "pro", "7"], "fee": [1.5, 3.5, 4.0], "label": [0.0, 1.0, 0.0]}
    write_rows(tmp_path / "t" / f"d.{suffix}", [4], user=["u4"])
    with pytest.raises(DataError, match=rf"d\.{suffix}, row 1: column 'user' is 'u4', expected a 64-bit integer"):
        rows_in(tmp_path, config_of("t"))


def test_key_of_json_may_come_late(tmp_path: Path) -> None:
    rows = [{"user": n, "fee": 1.5, "label": 0} for n in range(1_200)]
    rows.append({"user": 9, "late": 1, "mixed": [1, "a"], "fee": "2.5", "label": 1})
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = FilesConfig(files=("t.jsonl",), format="jsonl")
    assert names_in(tmp_path / "t.jsonl", config) == ["user", "fee", "label", "late", "mixed"]
    columns = {"late": ColumnConfig(type="int"), "mixed": ColumnConfig(role="multihot")}
    read = rows_in(tmp_path, config_of("t.jsonl", columns=columns))
    assert (read["late"][-2:], read["mixed"][-2:]) == ([None, 1], [None, ["1", "a"]])


# --- Values

PLAIN = {
    "string view": (pa.array(["a", None], pa.string_view()), {}, ["a", None]),
    "list view": (pa.array([["a", "b"], []], pa.list_view(pa.string())), {"role": "multihot"}, [["a", "b"], []]),
    "list of dictionaries": (
        pa.array([["a", "b"], ["c", None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        {"role": "multihot"},
        [["a", "b"], ["c"]],
    ),
    "half float": (pa.array([1.5, None], pa.float16()), {"type": "float", "role": "numeric"}, [1.5, None]),
    "large ids": (pa.array([2**63, 2**64 - 1], pa.uint64()), {}, [str(2**63), str(2**64 - 1)]),
    "an empty text": (pa.array(["", " "]), {}, [None, " "]),
    "empty texts of a list": (pa.array([["", "a"], [""]]), {"role": "multihot"}, [["a"], []]),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_finer_types_of_arrow_are_read_as_plain_ones(tmp_path: Path, case: str) -> None:
    values, choices, expected = PLAIN[case]
    pq.write_table(pa.table({"x": values, "label": [0, 1]}), tmp_path / "t.parquet", row_group_size=1)
    config = config_of("t.parquet", columns={"x": ColumnConfig(**choices)})
    assert rows_in(tmp_path, config)["x"] == expected
    parts = list(TableRequests(config).of_file(tmp_path / "t.parquet"))
    assert [value for _, sent, _ in parts for value in sent["x"].to_pylist()] == expected
    kind = parts[0][0]["x"].type
    assert not any(name in str(kind) for name in ("view", "half"))


def test_words_for_what_is_missing_may_have_blanks_around_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + 'NA ,NA,"NA ",0\n 2,pro, NA,1\n3, NA ,1.5,1\n')
    rows = rows_in(tmp_path, config_of("t.csv", missing=("", " NA")))
    assert rows == {
        "user": [None, 2, 3],
        "plan": ["NA", "pro", " NA "],
        "fee": [None, None, 1.5],
        "label": [0.0, 1.0, 1.0],
    }
