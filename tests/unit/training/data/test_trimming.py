from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.data.spec_files import Rows
from rankline.training.data.trimming import trimmed
from rankline.workflows.core.errors import DataError

IDS = st.integers(1, 2**40)


def rows(**columns: list[list[int]]) -> Rows:
    table = pa.table({name: pa.array(lists, pa.list_(pa.int64())) for name, lists in columns.items()})
    return Rows(table=table, origins=dict.fromkeys(columns, (Path("a.csv"), 10)), num_bytes=0)


def lists_of(made: Any) -> dict[str, list[list[int]]]:
    return {name: column.to_pylist() for name, column in made.items()}


@st.composite
def padded(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[tuple[int, int]]]:
    """Histories of two features, and zeros to put before and behind each row."""
    lengths = draw(st.lists(st.integers(0, 4), max_size=6))
    first, second = ([draw(st.lists(IDS, min_size=n, max_size=n)) for n in lengths] for _ in range(2))
    return first, second, [draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in lengths]


@given(padded())
def test_padding_at_either_end_goes_and_all_ids_stay(
    case: tuple[list[list[int]], list[list[int]], list[tuple[int, int]]],
) -> None:
    first, second, zeros = case

    def with_zeros(lists: list[list[int]]) -> list[list[int]]:
        return [[0] * before + row + [0] * behind for row, (before, behind) in zip(lists, zeros, strict=True)]

    given = rows(item=with_zeros(first), cat=with_zeros(second), other=with_zeros(second))
    assert lists_of(trimmed(given, ["item", "cat"], ["other"])) == {"item": first, "cat": second, "other": second}


def test_rows_of_a_slice_and_unpadded_features_keep_their_own() -> None:
    whole = rows(item=[[9], [0, 0, 4, 5], []], cat=[[1], [7, 8], []])
    part = Rows(table=whole.table.slice(1), origins=whole.origins, num_bytes=0)
    assert lists_of(trimmed(part, ["item", "cat"], [])) == {"item": [[4, 5], []], "cat": [[7, 8], []]}


def test_a_history_may_come_without_negatives() -> None:
    made = trimmed(rows(item=[[0, 1, 2]], other=[[0, 0, 0]]), ["item"], ["other"])
    assert lists_of(made) == {"item": [[1, 2]], "other": [[]]}
    assert trimmed(rows(item=[[1]]), [], []) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item": [[1], [0, 1, 0, 2]], "cat": [[1], [0, 1, 1, 2]]}, "row 12: 'item' has a 0 between ids"),
        ({"item": [[1], [1, 2]], "cat": [[1], [0, 2]]}, "row 12: 'cat' has 1 ids and 'item' has 2, expected as many"),
        ({"item": [[0, 1]], "cat": [[1, 0]]}, "row 11: 'cat' and 'item' have their padding at different ends"),
        ({"item": [[1], [1, 2]], "cat": [[1], [1, 2]], "other": [[], [3]]}, "row 12: 'other' has 1 ids and 'item'"),
    ],
)
def test_a_history_that_contradicts_itself_is_named_by_file_and_row(
    columns: dict[str, list[list[int]]], message: str
) -> None:
    with pytest.raises(DataError, match=rf"a\.csv: {message}"):
        trimmed(rows(**columns), ["item", "cat"], ["other"] if "other" in columns else [])


def test_ids_are_int64_whatever_the_file_has() -> None:
    table = pa.table({"item": pa.array([[0, 3]], pa.list_(pa.int8()))})
    made = trimmed(Rows(table=table, origins={"item": (Path("a"), 0)}, num_bytes=0), ["item"], [])
    assert made["item"].values.to_numpy().dtype == np.int64
