"""What `init` takes columns for, and why."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflows.datasets.table.config import FilesConfig, LabelConfig
from workflows.datasets.table.files import scan, with_format
from workflows.datasets.table.guess import Guesses, guess
from workflows.datasets.table.leaks import find_leaks
from workflows.datasets.table.profile import Profile, profile
from workflows.errors import DataError

N = 2_000
RNG = np.random.default_rng(0)
DAYS = [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(N)]


def profile_of(columns: dict[str, Any], path: Path, kind: str) -> Profile:
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
    config = with_format(FilesConfig(files=(file.name,)), [file])
    return profile(scan([file], config).extents, config)


def guessed(tmp_path: Path, values: Any, name: str = "x", kind: str = "csv") -> tuple[str, str, str]:
    columns = {name: values, "more": RNG.normal(size=N).tolist(), "label": [n % 2 for n in range(N)]}
    found = guess(profile_of(columns, tmp_path, kind)).columns[name]
    return found.config.type, found.config.role, found.why


CASES: dict[str, tuple[list[Any], str, str, str]] = {
    "few whole numbers": ([n % 12 for n in range(N)], "x", "int categorical", "12 distinct values, so a category"),
    "an age": ([18 + n % 60 for n in range(N)], "age", "int numeric", "60 distinct values from 18 to 77"),
    "a long tail": ([2 ** (n % 20) + n if n % 5 == 0 else n % 90 for n in range(N)], "x", "int numeric", "a long tail"),
    "null words": (["?" if n % 5 == 0 else n / 7 for n in range(N)], "x", "float numeric", ""),
    "numbers and one text": (["many" if n == 7 else n for n in range(N)], "x", "string ignored", ""),
    "codes with zeros": ([f"{n % 900:05}" for n in range(N)], "zip", "string id", ""),
    "words for booleans": ([("yes", "no", None)[n % 3] for n in range(N)], "x", "bool categorical", ""),
    "a row number": (list(range(N)), "x", "int ignored", "a row number"),
    "one value": (["a"] * N, "x", "string ignored", "one value in all rows"),
    "nothing": ([None] * N, "x", "string ignored", "no value in any row"),
    "unique texts": ([f"k{n * 7919}" for n in range(N)], "x", "string ignored", "another one in nearly every row"),
    "ids": ([f"u{n % 400}" for n in range(N)], "user_id", "string id", "400 distinct values"),
    "a user": ([n % 50 for n in range(N)], "user", "int id", "an id by its name"),
    "number ids": ([n % 400 for n in range(N)], "movieId", "int id", "an id by its name"),
    "a name of requests": (DAYS, "seen__valid", "string ignored", "of what belongs to a column 'seen'"),
    "the name of the answer": (DAYS, "score", "string ignored", "answers of the served model"),
    "lists in a cell": (
        [f"{'abc'[n % 3]}|{'def'[n // 3 % 3]}|{n % 50}" for n in range(N)], "x", "string multihot", "separated by |",
    ),
    "days": (DAYS, "x", "timestamp timestamp", "ISO 8601"),
    "american days": ([f"{1 + n % 12}/{1 + n % 28}/2024" for n in range(N)], "x", "timestamp timestamp", "%m/%d/%Y"),
    "european days": ([f"{1 + n % 28}/{1 + n % 12}/2024" for n in range(N)], "x", "timestamp timestamp", "%d/%m/%Y"),
    "seconds since 1970": ([1_700_000_000 + 3600 * n for n in range(N)], "timestamp", "timestamp timestamp", "epoch_s"),
    "times in three formats": (
        [("2024-01-02", "13/01/2024", "02.01.2024")[n % 3] for n in range(N)], "x", "string ignored",
        "times in several formats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_column_is_taken_for_what_it_looks_like(tmp_path: Path, case: str) -> None:
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
        (pa.array([str(n % 5) for n in range(N)]).dictionary_encode(), "string categorical"),
        (pa.array([["a", "b"][: n % 3] for n in range(N)]), "string multihot"),
        (pa.array([[n % 7] for n in range(N)], pa.list_(pa.int32())), "int multihot"),
        (pa.array([n / 4 for n in range(N)]).cast(pa.decimal128(12, 2)), "float numeric"),
        (pa.array([b"x"] * N), "string ignored"),
        (pa.array([{"a": n} for n in range(N)]), "string ignored"),
    ],
)
def test_types_of_parquet_are_kept(tmp_path: Path, values: pa.Array, expected: str) -> None:
    kind, role, why = guessed(tmp_path, values, kind="parquet")
    assert f"{kind} {role}" == expected, why


def test_numbers_with_a_decimal_comma_are_no_lists(tmp_path: Path) -> None:
    commas = [f"{n % 9},{n % 700:03}" for n in range(N)]
    assert guessed(tmp_path, commas, kind="parquet") == (
        "string",
        "ignored",
        "such as '0,000': if these are numbers, write them with a point",
    )
    lists = [",".join(str((n + i) % 7) for i in range(n % 4)) for n in range(N)]
    assert guessed(tmp_path, lists, kind="parquet")[:2] == ("string", "multihot")


def label_of(tmp_path: Path, values: list[Any], name: str = "label", *, given: tuple[str, ...] = ()) -> Guesses:
    columns = {"x": RNG.normal(size=N).tolist(), "y1": [n % 7 for n in range(N)], name: values}
    return guess(profile_of(columns, tmp_path, "csv"), given)


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ([n % 2 for n in range(N)], "label", LabelConfig()),
        ([("yes", "no")[n % 2] for n in range(N)], "churn", LabelConfig()),
        ([("lost", "won")[n % 2] for n in range(N)], "target", LabelConfig(classes=("lost", "won"))),
        ([n % 3 for n in range(N)], "kind", LabelConfig(task="multiclass", classes=("0", "1", "2"))),
        ([1 + n % 5 for n in range(N)], "rating", LabelConfig(task="regression")),
        ([n / 3 for n in range(N)], "price", LabelConfig(task="regression")),
        ([f"c{n % 3}" for n in range(N)], "outcome", LabelConfig(task="multiclass", classes=("c0", "c1", "c2"))),
    ],
)
def test_the_label_and_its_task_are_guessed(
    tmp_path: Path, values: list[Any], name: str, expected: LabelConfig
) -> None:
    assert label_of(tmp_path, values, name).labels == {name: expected}


def test_a_label_of_which_nothing_can_be_learned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the label 'label' is '1' in all rows"):
        label_of(tmp_path, ["1"] * N)
    with pytest.raises(DataError, match="has about 2,000 distinct texts|has 2,000 distinct texts"):
        label_of(tmp_path, [f"t{n}" for n in range(N)])
    with pytest.raises(DataError, match=r"no column 'lable'.* Did you mean 'label'"):
        label_of(tmp_path, [0, 1] * (N // 2), given=("lable",))
    assert list(label_of(tmp_path, [0, 1] * (N // 2), given=("label", "y1")).labels) == ["label", "y1"]
    tags = [f"{'abc'[n % 3]}|{'defgh'[n % 5]}" for n in range(N)]
    with pytest.raises(
        DataError, match=r"the last one, 'tags', is none \(lists, separated by \|\)\. Choose one with --label"
    ):
        label_of(tmp_path, tags, "tags")
    assert label_of(tmp_path, tags, "tags", given=("tags",)).labels["tags"].task == "multiclass"


def test_why_a_label_is_one_says_what_nobody_would_expect(tmp_path: Path) -> None:
    answers = [("yes", "no")[n % 2] for n in range(N)]
    assert label_of(tmp_path, answers, "churn").label_why["churn"].endswith("two values; 'yes' is the positive one")
    answers[7] = "maybe"
    why = label_of(tmp_path, answers, "churn").label_why["churn"]
    assert why.endswith(f"3 distinct values, 'maybe' in 1 of {N:,} rows")


def test_times_and_users_order_and_group_the_rows(tmp_path: Path) -> None:
    columns = {
        "when": [f"2024-01-{1 + n % 28:02} {n % 24:02}:00:00" for n in range(N)],
        "user_id": [f"u{n % 300}" for n in range(N)],
        "item_id": [f"i{n % 100}" for n in range(N)],
        "viewed": [f"i{n % 100}|i{n * 7 // 100 % 100}" for n in range(N)],
        "click": [n % 2 for n in range(N)],
    }
    found = guess(profile_of(columns, tmp_path, "csv"))
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
def test_a_month_is_left_out_where_those_to_come_are_new(
    years: int, clock: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    times = [f"{2022 + n % years}-{1 + n % 12:02}-{1 + n % 28:02}{clock}" for n in range(N)]
    columns = {"when": times, "more": RNG.normal(size=N).tolist(), "label": [n % 2 for n in range(N)]}
    assert guess(profile_of(columns, tmp_path, "csv")).columns["when"].config.parts == parts


def leaks_of(tmp_path: Path, columns: dict[str, Any], config: LabelConfig) -> dict[str, str]:
    found = profile_of(columns, tmp_path, "csv")
    guesses = guess(found, ("label",))
    return find_leaks(found.sample, {n: c.config for n, c in guesses.columns.items()}, "label", config)


def test_what_gives_the_label_away_is_found(tmp_path: Path) -> None:
    label = RNG.integers(0, 2, N)
    columns = {
        "honest": (label + RNG.normal(size=N)).tolist(),
        "status": [("open", "paid")[y] for y in label],
        "amount": (label * 100 + RNG.random(N)).tolist(),
        "label": label.tolist(),
    }
    leaks = leaks_of(tmp_path, columns, LabelConfig())
    assert set(leaks) == {"status", "amount"}
    assert "predicts label alone (AUC 1.000)" in leaks["status"]


def test_numbers_that_add_up_to_the_label_are_found(tmp_path: Path) -> None:
    a, b, c = RNG.integers(0, 300, N), RNG.integers(0, 300, N), RNG.integers(0, 300, N)
    columns = {"a": a.tolist(), "b": b.tolist(), "c": c.tolist(), "label": (a + b).tolist()}
    leaks = leaks_of(tmp_path, columns, LabelConfig(task="regression"))
    assert leaks == dict.fromkeys(("a", "b"), "label is a + b, in every row")
