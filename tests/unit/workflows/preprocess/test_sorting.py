"""Sorting a split by time or by group, in ranges that fit in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankline.workflows.preprocess.partitions import FilesWriter, RawSplit, read_partition
from rankline.workflows.preprocess.sorting import first_rows_of_groups, sorted_split
from rankline.workflows.preprocess.splits import ByColumn

BY_TIME = ByColumn(column="key", begin=1e9)
BY_GROUP = ByColumn(column="key", share=0.2)


def split_of(keys: Sequence[Any], directory: Path, dictionaries: Sequence[str] = ("text",)) -> RawSplit:
    rows = pa.table(
        {
            "key": keys,
            "text": [f"t{number % 7}" for number in range(len(keys))],
            "row": range(len(keys)),
            "list": pa.array([[number] * (number % 3) for number in range(len(keys))], pa.list_(pa.int64())),
        }
    )
    writer = FilesWriter(directory / "train", rows_per_file=10, dictionaries=dictionaries)
    writer.write(rows)
    return RawSplit(name="train", partitions=tuple(writer.close()), num_rows=len(rows), schema=rows.schema)


def rows_of(split: RawSplit) -> list[dict[str, Any]]:
    return pa.concat_tables([read_partition(path).cast(split.schema) for path in split.partitions]).to_pylist()


@pytest.mark.parametrize("share_of_ties", [0.0, 0.7])
@pytest.mark.parametrize("partition_rows", [1, 3, 10, 1_000])
def test_rows_are_in_order_of_time_and_ties_keep_theirs(
    tmp_path: Path, partition_rows: int, share_of_ties: float
) -> None:
    rng = np.random.default_rng(0)
    times = np.where(rng.random(95) < share_of_ties, 20, rng.integers(0, 40, 95))
    keys = [None if time == 7 else int(time) for time in times]
    split = split_of(keys, tmp_path)
    before = rows_of(split)
    after = sorted_split(split, BY_TIME, tmp_path, partition_rows=partition_rows, dictionaries=["text"])
    assert rows_of(after) == sorted(before, key=lambda row: -1 if row["key"] is None else row["key"])
    assert len(after.partitions) == -(-95 // partition_rows)
    assert pa.types.is_dictionary(read_partition(after.partitions[0]).schema.field("text").type)


def test_rows_in_order_stay_in_their_files(tmp_path: Path) -> None:
    split = split_of([None, *range(40)], tmp_path)
    assert sorted_split(split, BY_TIME, tmp_path, partition_rows=10, dictionaries=["text"]) is split


@pytest.mark.parametrize("dictionaries", [("text",), ("key", "text")])
def test_rows_of_a_group_follow_each_other(tmp_path: Path, dictionaries: Sequence[str]) -> None:
    groups = [f"g{number * number % 11}" if number % 9 else None for number in range(95)]
    split = split_of(groups, tmp_path, dictionaries)
    after = sorted_split(split, BY_GROUP, tmp_path, partition_rows=20, dictionaries=dictionaries)
    firsts = first_rows_of_groups(after, BY_GROUP)
    found = [rows["key"] for rows in rows_of(after)]
    assert sorted(found, key=str) == sorted(groups, key=str)
    parts = [found[begin:end] for begin, end in zip(firsts, [*firsts[1:], len(found)], strict=True)]
    assert [part for part in parts if None in part] == [[None]] * groups.count(None)
    named = [set(part) for part in parts if None not in part]
    assert all(len(names) == 1 for names in named)
    assert len(set.union(*named)) == len(named)
