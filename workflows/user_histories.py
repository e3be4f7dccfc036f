"""What each user rated, gathered from the training rows and joined to the user: the histories of rows that stay rows.

A request names a user and an item, and the graph looks up the rest. A row's own rating is in its user's history; models
leave it out by the item's id, the same in training and in serving, so no row has a history of its own on disk.
"""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from workflows.datasets.base import RatedColumns
from workflows.datasets.raw import RawData
from workflows.encodings.rows_config import RowsConfig
from workflows.encodings.splits import split_by_column, split_rows
from workflows.errors import ConfigError


def training_rows(raw: RawData, config: RowsConfig, columns: RatedColumns) -> pa.Table:
    """The rows that a split trains on, which are all that a history may know.

    Raises:
        ConfigError: the rows are a stream, of which no history is gathered, or a part of the split would be empty.
    """
    if not isinstance(raw.rows, pa.Table):
        raise ConfigError("histories are gathered from rows in memory, and these are streamed. Read them as a table.")
    by = split_by_column(raw.rows, config, columns.time, columns.user)
    return pa.concat_tables(rows for name, rows in split_rows(raw.rows, config, columns.time, by) if name == "train")


def user_histories(rows: pa.Table, columns: RatedColumns, max_history: int, *, items: str, grades: str) -> pd.DataFrame:
    """What each user rated, the latest last.

    Args:
        rows: training rows; of equal times, the later row counts as later.
        columns: names of the raw columns.
        max_history: only so many of the latest are kept.
        items: name of the column of lists of items.
        grades: name of the column of lists of grades, as long.

    Returns:
        One row per user: user, `items` (object, arrays of the items' dtype), `grades` (object, arrays of float32).
    """
    users, rated, grade, time = (
        rows[name].to_numpy() for name in (columns.user, columns.item, columns.grade, columns.time)
    )
    order = np.lexsort((time, users))
    distinct, first = np.unique(users[order], return_index=True)
    last = np.append(first[1:], len(order))
    places = [order[max(start, stop - max_history) : stop] for start, stop in zip(first, last, strict=True)]
    return pd.DataFrame(
        {
            columns.user: distinct,
            items: _lists(rated, places),
            grades: _lists(grade.astype(np.float32), places),
        }
    )


def _lists(values: Any, places: list[Any]) -> "pd.Series[Any]":
    return pd.Series([values[rows] for rows in places], dtype=object)
