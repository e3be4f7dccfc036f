"""What `init` takes columns for, and why."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.recipes.first_recipe import first_recipe
from rankline.workflows.core.errors import DataError
from rankline.workflows.data.autodetect.guess import Guesses, guess, labels_among
from rankline.workflows.data.autodetect.profile import profile
from rankline.workflows.data.tabular.config import ColumnConfig, FilesConfig, LabelConfig
from rankline.workflows.data.tabular.files import names_in, scan, with_format

N = 2_000
RNG = np.random.default_rng(0)
DAYS = [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(N)]


def file_of(columns: dict[str, Any], path: Path, kind: str) -> Path:
    table = pa.table(columns)
    file = path / f"rows.{kind}"
    if kind == "csv":
        lines = [
            ",".join(columns),
            *(",".join("" if v is None else str(v) for v in r.values()) for r in table.to_pylist()),
        ]
        file.write_text("\n".join(lines) + "\n")
    elif kind == "jsonl":
        file.write_text("\n".join(json.dumps(row, default=str) for row in table.to_pylist()))
    else:
        pq.write_table(table, file)
    return file


def guesses_of(
    columns: dict[str, Any], path: Path, kind: str = "csv", labels: tuple[str, ...] = (), sample_rows: int = 200_000
) -> Guesses:
    file = file_of(columns, path, kind)
    config = with_format(FilesConfig(files=(file.name,)), [file])
    names = {file: names_in(file, config)}
    chosen = labels_among(names[file], labels)
    return guess(profile(scan([file], config).extents, config, names, chosen, sample_rows=sample_rows), chosen)


def guessed(tmp_path: Path, values: Any, name: str = "x", kind: str = "csv") -> tuple[str, str, str]:
    columns = {
        name: values,
        "more": RNG.normal(size=len(values)).tolist(),
        "label": [n % 2 for n in range(len(values))],
    }
    found = guesses_of(columns, tmp_path, kind).columns[name]
    return found.config.type, found.config.role, found.why


CASES: dict[str, tuple[list[Any], str, str, str]] = {
    "few whole numbers": ([n % 12 for n in range(N)], "x", "int categorical", "12 distinct values, so a category"),
    "a long tail": ([2 ** (n % 20) + n if n % 5 == 0 else n % 90 for n in range(N)], "x", "int numeric", "long-tailed"),
    "null words": (["?" if n % 5 == 0 else n / 7 for n in range(N)], "x", "float numeric", ""),
    "numbers and one text": (
        ["many" if n == 7 else n for n in range(N)], "x", "string ignored",
        "numbers, except in 1 row such as 'many': correct or delete this row",
    ),
    "numbers and two texts": (
        [("many", "few")[n] if n < 2 else n for n in range(N)], "x", "string ignored",
        "numbers, except in 2 rows such as 'many', 'few': correct or delete these rows",
    ),
    "codes with zeros": ([f"{n % 900:05}" for n in range(N)], "zip", "string id", ""),
    "words for booleans": ([("yes", "no", None)[n % 3] for n in range(N)], "x", "bool categorical", ""),
    "a row number": (list(range(N)), "x", "int ignored", "a row number"),
    "unique texts": ([f"k{n * 7919}" for n in range(N)], "x", "string ignored", "different in nearly every row"),
    "ids": ([f"u{n % 400}" for n in range(N)], "user_id", "string id", "400 distinct values"),
    "a user": ([n % 50 for n in range(N)], "user", "int id", "an id according to its name"),
    "a name of requests": (DAYS, "seen__valid", "string ignored", "that belongs to column 'seen'"),
    "the name of the answer": (
        DAYS, "score", "string ignored", "the output of the served model has the same name, and predict refuses files",
    ),
    "lists in a cell": (
        [f"{'abc'[n % 3]}|{'def'[n // 3 % 3]}|{n % 50}" for n in range(N)], "x", "string multihot", "separated by |",
    ),
    "days": (DAYS, "x", "timestamp timestamp", "ISO 8601"),
    "european days": ([f"{1 + n % 28}/{1 + n % 12}/2024" for n in range(N)], "x", "timestamp timestamp", "%d/%m/%Y"),
    "seconds with fractions": ([f"{1_700_000_000 + n / 4}" for n in range(N)], "ts", "timestamp timestamp", "epoch_s"),
    "half days": (
        [f"{1 + n % 12}/{13 + n % 9}/2024 {1 + n % 12}:04 {'AP'[n % 2]}M" for n in range(N)], "x",
        "timestamp timestamp", "%m/%d/%Y %I:%M %p",
    ),
    "days as many numbers": ([day.replace("-", "") for day in DAYS], "x", "int numeric", "distinct values"),
    "day or month first": (
        [f"{1 + n % 3:02}/{1 + n % 12:02}/2024" for n in range(N)], "x", "timestamp timestamp",
        "written as %m/%d/%Y; %d/%m/%Y also fits all rows",
    ),
    "days close together": (
        [f"{1 + n % 12:02}/01/2024" for n in range(N)], "x", "timestamp timestamp", "written as %d/%m/%Y; %m/%d/%Y",
    ),
    "times but for one": (
        ["soon" if n == 7 else day for n, day in enumerate(DAYS)], "x", "string ignored",
        "times written in ISO 8601 format, except some such as 'soon'",
    ),
    "times of a form of their own": (
        [f"{n % 24:02}:{n % 60:02}:00.{n:04}" for n in range(N)], "x", "string ignored",
        "looks like times in an unknown format: set type, role and format",
    ),
    "numbers with exponents": (["5.00E+05" if n == 7 else n * 100 for n in range(N)], "x", "int numeric", ""),
    "ids beyond 64 bits": ([2**63 - 50 + n % 100 for n in range(N)], "big_id", "string id", "100 distinct values"),
    "lists in brackets": ([f"[{n}; {n % 7}]" for n in range(N)], "x", "string ignored", "lists in brackets, such as"),
    "only words for nothing": (["NA"] * N, "x", "string ignored", "no value in any row"),
    "seconds since 1970": ([1_700_000_000 + 3600 * n for n in range(N)], "timestamp", "timestamp timestamp", "epoch_s"),
    "times in three formats": (
        [("2024-01-02", "13/01/2024", "02.01.2024")[n % 3] for n in range(N)], "x", "string ignored",
        "times in several formats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_column_is_taken_for_what_it_looks_like(tmp_path: Path, case: str) -> None:
    values, name, expected, why = CASES[case]
    kind, role, said = guessed(tmp_path, [None if v is None else str(v) for v in values], name)
    assert f"{kind} {role}" == expected, said
    assert why in said


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([n % 3 == 0 for n in range(N)]), "bool categorical"),
        (pa.array([n % 60 + 0.5 for n in range(N)], pa.float32()), "float numeric"),
        (pa.array(DAYS).cast(pa.date32()), "timestamp timestamp"),
        (pa.array([["a", "b"][: n % 3] for n in range(N)]), "string multihot"),
        (pa.array([n % 100 + 2**63 for n in range(N)], pa.uint64()), "string categorical"),
        (pa.array([Decimal(2**60 + n % 100) for n in range(N)], pa.decimal128(38)), "string categorical"),
        (pa.array([[n % 5 + 2**63] for n in range(N)], pa.list_(pa.uint64())), "string multihot"),
        (pa.array([[n % 3 == 0] for n in range(N)]), "bool multihot"),
        (pa.array([[day] for day in DAYS]).cast(pa.list_(pa.date32())), "int multihot"),
        (pa.array([["a", None], None, ["b"]] * N, pa.list_(pa.dictionary(pa.int8(), pa.string()))), "string multihot"),
        (pa.array([[n / 7] * 8 for n in range(N)], pa.list_(pa.float32(), 8)), "float vector"),
        (pa.array([[] for n in range(N)], pa.list_(pa.int64())), "string ignored"),
        (pa.array(list(range(N)), pa.duration("s")), "string ignored"),
        (pa.array([{"a": n} for n in range(N)]), "string ignored"),
    ],
)
def test_types_of_parquet_are_kept(tmp_path: Path, values: pa.Array, expected: str) -> None:
    kind, role, why = guessed(tmp_path, values, kind="parquet")
    assert f"{kind} {role}" == expected, why


@pytest.mark.parametrize(
    ("values", "word", "expected"),
    [
        ([n * 3 for n in range(N)], "\\N", "int numeric"),
        ([n / 7 for n in range(N)], " ", "float numeric"),
        ([f"{day} 07:30:00" for day in DAYS], "0000-00-00 00:00:00", "timestamp timestamp"),
        ([("yes", "no")[n % 2] for n in range(N)], "NA ", "bool categorical"),
    ],
    ids=["whole", "float", "time", "bool"],
)
def test_words_for_nothing_hide_no_type(tmp_path: Path, values: list[Any], word: str, expected: str) -> None:
    columns = {
        "x": [word if n % 500 == 3 else str(v) for n, v in enumerate(values)],
        "label": [n % 2 for n in range(N)],
    }
    found = guesses_of(columns, tmp_path)
    config = found.columns["x"].config
    assert f"{config.type} {config.role}" == expected
    assert found.missing == (("", word.strip()) if word.strip() else ("",))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([n % 5 + 2**63 for n in range(N)], "string categorical"),
        ([["1", str(n % 5)] for n in range(N)], "string multihot"),
        ([["2024-01-02"], ["2024-01-03"]] * (N // 2), "string multihot"),
        ([[n / 2, -1.0] for n in range(N)], "float vector"),
        ([[1.0] * (n % 3) for n in range(N)], "float ignored"),
        ([n if n < 1_500 else str(n) for n in range(N)], "int ignored"),
    ],
)
def test_json_is_taken_for_what_it_looks_like(tmp_path: Path, values: list[Any], expected: str) -> None:
    rows = [{"x": value, "y": n % 3, "label": n % 2} for n, value in enumerate(values)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = first_recipe([str(tmp_path / "rows.jsonl")], [], tmp_path).guesses.columns["x"].config
    assert f"{config.type} {config.role}" == expected


def test_sample_of_the_rows_is_enough(tmp_path: Path) -> None:
    rows = 40_000
    columns = {
        "user": [f"u{n // 8}" for n in range(rows)],  # rows of a user follow each other
        "row": list(range(rows)),
        "few": [n % 7 for n in range(rows)],
        "label": [("a", "b")[n % 2] if n != 777 else "c" for n in range(rows)],
    }
    found = guesses_of(columns, tmp_path, sample_rows=4_000)
    assert found.columns["user"].config == ColumnConfig(role="id", frequency_threshold=4)
    assert 4_000 < int(found.columns["user"].why.split()[1].replace(",", "")) < 6_000  # there are 5,000
    assert found.columns["row"].why.endswith("a row number")
    assert found.columns["few"].why == "about 7 distinct values, so a category"
    assert found.labels["label"].classes == ("a", "b", "c")


def test_numbers_with_a_decimal_comma_are_no_lists(tmp_path: Path) -> None:
    commas = [f"{n % 9},{n % 700:03}" for n in range(N)]
    assert guessed(tmp_path, commas, kind="parquet") == (
        "string",
        "ignored",
        "such as '0,000': if these are numbers, write them as 0.000",
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([f"{n * 7.5:,.2f}" for n in range(N)], "'10,005.00': if these are numbers, write them as 10005.00"),
        ([f"${n * 13 + 0.5:,.2f}" for n in range(N)], "'$10,010.50': if these are numbers, write them as 10010.50"),
        ([f"{n}.{n % 900:03},{n % 90:02} €" for n in range(1, 999)], "if these are numbers, write them as 100100.10"),
        ([f"{n * 7919:,}".replace(",", " ") for n in range(N)], "'10 001 697': if these"),
        ([f"{n}\u202f{n % 900:03},5" for n in range(1, 999)], "if these are numbers, write them as 100100.5"),
        ([f"{n * 7919:,}".replace(",", "'") for n in range(N)], "if these are numbers, write them as 10001697"),
        ([f"{n * 17:,}" for n in range(N)], "'10,013': if these are numbers, write them as 10013 or 10.013"),
        ([f"{350_000 + n:,}" for n in range(N)], "'350,000': if these are numbers, write them as 350000 or 350.000"),
        (["n/a" if n == 5 else f"£{n}" for n in range(N)], "'£1000': if these are numbers, write them as 1000"),
        (["Total" if n == 7 else f"${n}" for n in range(N)], "'$1000': if these are numbers, write them as 1000"),
    ],
)  # fmt: skip
def test_formatted_numbers_are_ignored_with_a_remedy(tmp_path: Path, values: list[str], said: str) -> None:
    kind, role, why = guessed(tmp_path, values, kind="parquet")
    assert (kind, role) == ("string", "ignored")
    assert why.startswith("such as ")
    assert said in why


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [f"{1 + n % 4}0%" for n in range(N)],
            "4 distinct values; such as '10%': if these are numbers, write them as 10",
        ),
        ([f"{n % 100 - 50}%" for n in range(N)], "; such as '-50%': if these are numbers, write them as -50"),
        (["1,234" if n == 7 else str(n % 900) for n in range(N)], "; in 1 row, such as '1,234': if these are numbers"),
    ],
)
def test_repeated_formatted_numbers_are_categories_with_a_remedy(tmp_path: Path, values: list[Any], said: str) -> None:
    kind, role, why = guessed(tmp_path, values, kind="parquet")
    assert (kind, role) == ("string", "categorical")
    assert said in why


@pytest.mark.parametrize(
    ("values", "name", "role"),
    [
        ([",".join(str((n + i) % 7) for i in range(n % 4)) for n in range(N)], "x", "multihot"),
        ([",".join(str(100 + (n + i) % 70) for i in range(1 + n % 3)) for n in range(N)], "x", "multihot"),
        ([("1,2,3" if n == 7 else "1,2" if n % 9 == 0 else f"{n % 7}") for n in range(N)], "x", "categorical"),
        ([f"{1 + n % 9} {100 + n % 90}" for n in range(N)], "customer_id", "id"),
        ([f"{600 + n % 90} {100 + n % 90} {100 + n % 80}" for n in range(N)], "phone", "categorical"),
        ([f"{600 + n % 90} {100 + n % 80}" for n in range(N)], "postcode", "categorical"),
        ([f"{1 + n % 3}.{n % 20}.{n % 7}" for n in range(N)], "version", "categorical"),
        ([f"2020.{1 + n % 12:02}.{1 + n % 28:02}" for n in range(N)], "x", "timestamp"),
        ([f"{n % 50} GB" for n in range(N)], "x", "categorical"),
        ([("$5" if n % 10 == 0 else f"plan {n % 50}") for n in range(N)], "x", "categorical"),
    ],
)
def test_other_texts_with_digits_are_not_formatted_numbers(
    tmp_path: Path, values: list[str], name: str, role: str
) -> None:
    _, guessed_role, why = guessed(tmp_path, values, name, kind="parquet")
    assert guessed_role == role
    assert "if these are numbers" not in why


def label_of(tmp_path: Path, values: list[Any], name: str = "label", *, given: tuple[str, ...] = ()) -> Guesses:
    columns = {"x": RNG.normal(size=N).tolist(), "y1": [n % 7 for n in range(N)], name: values}
    return guesses_of(columns, tmp_path, labels=given)


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ([n % 2 for n in range(N)], "label", LabelConfig()),
        ([("lost", "won")[n % 2] for n in range(N)], "target", LabelConfig(classes=("lost", "won"))),
        ([n % 3 for n in range(N)], "kind", LabelConfig(task="multiclass", classes=("0", "1", "2"))),
        ([1 + n % 5 for n in range(N)], "rating", LabelConfig(task="regression")),
        ([("+1", "-1")[n % 2] for n in range(N)], "label", LabelConfig(classes=("-1", "+1"))),
        (["?" if n % 10 == 0 else n % 2 for n in range(N)], "label", LabelConfig()),
        (
            ["unknown" if n == 9 else n % 3 for n in range(N)],
            "kind",
            LabelConfig(task="multiclass", classes=("0", "1", "2")),
        ),
        ([("none", "mild", "NA")[n % 3] for n in range(N)], "kind", LabelConfig(classes=("mild", "none"))),
        ([("1", "1.0", "2", "3")[n % 4] for n in range(N)], "kind", LabelConfig(task="regression")),
    ],
)
def test_label_and_its_task_are_guessed(tmp_path: Path, values: list[Any], name: str, expected: LabelConfig) -> None:
    columns = {"x": RNG.normal(size=N).tolist(), name: [str(value) for value in values]}
    made = first_recipe([str(file_of(columns, tmp_path, "csv"))], [name], tmp_path)
    assert made.guesses.labels == {name: expected}
    assert made.contradiction is None


@pytest.mark.parametrize(
    ("values", "name", "why"),
    [
        ([n % 20 for n in range(N)], "kind", "20 distinct values"),
        ([n % 21 for n in range(N)], "kind", "21 distinct numbers, more than the 20 that could be classes"),
        (list(range(N // 2)) * 2, "kind", "1,000 distinct numbers, more than the 20 that could be classes"),
        ([n % 3 / 2 for n in range(N)], "kind", "3 distinct numbers, not all written as whole numbers"),
        ([("0", "inf")[n % 2] for n in range(N)], "kind", "2 distinct numbers, not all written as whole numbers"),
        ([n % 3 * 9 for n in range(N)], "kind", "3 distinct numbers, too far apart for classes"),
        ([1 + n % 5 for n in range(N)], "rating", "5 distinct numbers, an amount according to its name"),
    ],
)
def test_task_of_a_numeric_label_is_explained(tmp_path: Path, values: list[Any], name: str, why: str) -> None:
    found = label_of(tmp_path, values, name, given=(name,))
    assert found.label_why == {name: f"given; {why}"}
    assert found.labels[name].task == ("multiclass" if "values" in why else "regression")


def test_label_of_more_numbers_than_are_counted_is_a_regression(tmp_path: Path) -> None:
    columns = {"x": RNG.normal(size=2 * N).tolist(), "label": list(range(2 * N))}
    why = guesses_of(columns, tmp_path).label_why["label"]
    assert why == "by its name; 4,000 distinct numbers, more than the 20 that could be classes"


def test_label_of_amounts_as_people_write_them_says_how_to_write_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows, such as '\$(\d+)': if these are numbers, write them as \1\.$"):
        label_of(tmp_path, [f"${n}" for n in range(N)])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("numbers", [(0.0, 1.0), (0.5, 7.25, 3.0)])
def test_label_with_an_infinity_is_refused_with_its_row(tmp_path: Path, kind: str, numbers: tuple[float, ...]) -> None:
    label = [float("inf") if n == 7 else numbers[n % len(numbers)] for n in range(N)]
    file = file_of({"x": RNG.normal(size=N).tolist(), "label": label}, tmp_path, kind)
    with pytest.raises(DataError, match=r"row 8: the label 'label' is inf, expected .*\. Fix the value") as refusal:
        first_recipe([str(file)], ["label"], tmp_path).write(tmp_path / "rankline.yaml")
    assert "\n" not in str(refusal.value)


def test_label_of_which_nothing_can_be_learned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label 'label' is '1' in all rows"):
        label_of(tmp_path, ["1"] * N)
    with pytest.raises(DataError, match="has about 2,000 distinct strings|has 2,000 distinct strings"):
        label_of(tmp_path, [f"t{n}" for n in range(N)])
    with pytest.raises(DataError, match="which all mean the same"):
        label_of(tmp_path, ["yes", "y"] * (N // 2))
    with pytest.raises(DataError, match="label 'label' is missing in all rows, so there is nothing"):
        label_of(tmp_path, ["NA"] * N)
    with pytest.raises(DataError, match=r"'label,y1' is unknown.*\. Repeat --label for several columns\."):
        label_of(tmp_path, [0, 1] * (N // 2), given=("label,y1",))
    with pytest.raises(DataError, match=r"label column 'lable' is unknown.* Did you mean 'label'"):
        label_of(tmp_path, [0, 1] * (N // 2), given=("lable",))
    assert list(label_of(tmp_path, [0, 1] * (N // 2), given=("label", "y1")).labels) == ["label", "y1"]
    tags = [f"{'abc'[n % 3]}|{'defgh'[n % 5]}" for n in range(N)]
    with pytest.raises(DataError, match=r"the last one, 'tags', cannot be the label \(lists, separated by \|\)\. Pass"):
        label_of(tmp_path, tags, "tags")
    assert label_of(tmp_path, tags, "tags", given=("tags",)).labels["tags"].task == "multiclass"


def test_times_and_users_order_and_group_the_rows(tmp_path: Path) -> None:
    columns = {
        "when": [f"2024-01-{1 + n % 28:02} {n % 24:02}:00:00" for n in range(N)],
        "user_id": [f"u{n % 300}" for n in range(N)],
        "item_id": [f"i{n % 100}" for n in range(N)],
        "viewed": [f"i{n % 100}|i{n * 7 // 100 % 100}" for n in range(N)],
        "click": [n % 2 for n in range(N)],
    }
    found = guesses_of(columns, tmp_path)
    assert (found.time, found.group) == ("when", "user_id")
    assert found.columns["viewed"].config.role == "history"
    assert found.columns["viewed"].config.of == "item_id"


@pytest.mark.parametrize(
    ("years", "clock", "parts"),
    [
        (1, "", ("weekday", "day", "month")),
        (1, " 07:30:00", ("hour", "weekday", "day")),
        (3, " 07:30:00", ("hour", "weekday", "day", "month", "year")),
    ],
)
def test_month_is_left_out_of_a_single_year(years: int, clock: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    times = [f"{2022 + n % years}-{1 + n % 12:02}-{1 + n % 28:02}{clock}" for n in range(N)]
    columns = {"when": times, "more": RNG.normal(size=N).tolist(), "label": [n % 2 for n in range(N)]}
    assert guesses_of(columns, tmp_path).columns["when"].config.parts == parts


def leaks_of(tmp_path: Path, columns: dict[str, Any]) -> dict[str, str]:
    """What `init` says of the columns that it ignores as leaks."""
    made = first_recipe([str(file_of(columns, tmp_path, "csv"))], ["label"], tmp_path)
    whys = {name: column.why for name, column in made.guesses.columns.items()}
    return {name: why.removeprefix("a likely leak: ") for name, why in whys.items() if "a likely leak" in why}


def test_leak_of_the_label_is_found(tmp_path: Path) -> None:
    label = RNG.integers(0, 2, N)
    columns = {
        "honest": (label + RNG.normal(size=N)).tolist(),
        "status": [("open", "paid")[y] for y in label],
        "amount": (label * 100 + RNG.random(N)).tolist(),
        "label": label.tolist(),
    }
    leaks = leaks_of(tmp_path, columns)
    assert set(leaks) == {"status", "amount"}
    assert "predicts label alone (AUC 1.000)" in leaks["status"]


def test_numbers_that_add_up_to_the_label_are_found(tmp_path: Path) -> None:
    a, b, c = RNG.integers(0, 300, N), RNG.integers(0, 300, N), RNG.integers(0, 300, N)
    columns = {"a": a.tolist(), "b": b.tolist(), "c": c.tolist(), "label": (a + b).tolist()}
    leaks = leaks_of(tmp_path, columns)
    assert leaks == dict.fromkeys(("a", "b"), "label is a + b, in every row")


@pytest.mark.parametrize("lacks", ["label", "amount"])
def test_missing_cell_hides_no_leak(tmp_path: Path, lacks: str) -> None:
    label = RNG.integers(0, 2, 400)
    columns: dict[str, list[Any]] = {
        "x": RNG.normal(size=400).tolist(),
        "amount": (label * 10).tolist(),
        "flag": [("no", "yes")[y] for y in label],
        "when": [f"202{y}-01-02 00:00:00" for y in label],
        "label": label.tolist(),
    }
    columns[lacks][7] = "NA"
    assert set(leaks_of(tmp_path, {name: list(map(str, values)) for name, values in columns.items()})) == {
        "amount",
        "flag",
        "when",
    }
