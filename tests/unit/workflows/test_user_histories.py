from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from workflows.datasets.base import RatedColumns
from workflows.datasets.raw import RawData, StreamedRows
from workflows.encodings.rows_config import RowsConfig
from workflows.errors import ConfigError
from workflows.user_histories import training_rows, user_histories

COLUMNS = RatedColumns(user="user", item="item", grade="stars", time="at")
ROWS = pa.table(
    {
        "user": [7, 3, 7, 7, 3, 9],
        "item": [1, 2, 3, 4, 5, 6],
        "stars": [1.0, 2.0, 3.0, 4.0, 5.0, 0.5],
        "at": [30, 10, 20, 30, 5, 1],
    }
)


def test_each_user_has_the_latest_ratings_in_the_order_of_time() -> None:
    found = user_histories(ROWS, COLUMNS, 2, items="items", grades="grades")
    assert found["user"].tolist() == [3, 7, 9]
    assert [row.tolist() for row in found["items"]] == [[5, 2], [1, 4], [6]]  # of equal times the later row
    assert [row.tolist() for row in found["grades"]] == [[5, 2], [1, 4], [0.5]]


def test_a_history_of_ten_thousand_keeps_as_many_as_it_may() -> None:
    many = np.arange(10_000)
    rows = pa.table({"user": np.zeros(10_000, int), "item": many, "stars": many / 2e4, "at": many})
    (items,) = user_histories(rows, COLUMNS, 200, items="items", grades="grades")["items"]
    np.testing.assert_array_equal(items, many[-200:])


@pytest.mark.parametrize("split", ["random", "time", "group"])
def test_histories_know_the_training_rows_only(split: str) -> None:
    rows = pa.table({name: np.arange(100) for name in ROWS.column_names})
    found = training_rows(RawData(rows=rows, fingerprint=""), RowsConfig(split=split), COLUMNS)
    if split == "random":
        assert found["item"].to_pylist() == np.random.default_rng(42).permutation(100)[:80].tolist()
    if split == "time":
        assert found["item"].to_pylist() == list(range(80))
    assert 50 < len(found) < 100


def test_streamed_rows_are_refused() -> None:
    streamed = StreamedRows(schema=ROWS.schema, periods=(6,), batches=ROWS.to_batches)
    with pytest.raises(ConfigError, match="gathered from rows in memory"):
        training_rows(replace(RawData(rows=ROWS, fingerprint=""), rows=streamed), RowsConfig(), COLUMNS)
