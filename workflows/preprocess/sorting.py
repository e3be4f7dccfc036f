"""Sorts the rows of a split by time or by group, so that its latest rows, or whole groups, can be held out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.preprocess.partitions import FilesWriter, RawSplit, read_partition
from rankline.workflows.preprocess.splits import NO_GROUP, ByColumn, Keys

_MAX_SAMPLE = 1 << 22


def sorted_split(
    split: RawSplit, by: ByColumn, scratch: Path, *, partition_rows: int, dictionaries: Sequence[str]
) -> RawSplit:
    """Return the split with its rows in the order of their keys; rows with equal keys keep their order.

    Rows that are not in order are divided into ranges of keys of about `partition_rows` rows, which are sorted one by
    one, so memory is bounded.
    """
    if _is_sorted(split, by):
        return split
    edges = _edges(split, by, -(-split.num_rows // partition_rows))
    num_ranges = len(edges) + 1
    ranges = [
        FilesWriter(
            scratch / f"range-{n}", rows_per_file=split.num_rows, rows_per_group=-(-partition_rows // num_ranges)
        )
        for n in range(num_ranges)
    ]
    for path in split.partitions:
        rows = read_partition(path).cast(split.schema)
        path.unlink()
        numbers = np.searchsorted(edges, by.keys(rows), side="right")
        for number in np.unique(numbers):
            ranges[number].write(rows.filter(pa.array(numbers == number)))
    writer = FilesWriter(scratch / "sorted", rows_per_file=partition_rows, dictionaries=dictionaries)
    for one in ranges:
        for path in one.close():
            rows = pq.read_table(path).cast(split.schema)
            path.unlink()
            writer.write(rows.take(pa.array(np.argsort(by.keys(rows), kind="stable"))))
    return replace(split, partitions=tuple(writer.close()))


def first_rows_of_groups(split: RawSplit, by: ByColumn) -> npt.NDArray[np.int64]:
    """Return the number of each group's first row, for a sorted split. Every row without a group is a group."""
    firsts, num_rows, last = [], 0, None
    for path in split.partitions:
        keys = _keys(path, by)
        is_first = keys == NO_GROUP
        is_first[1:] |= keys[1:] != keys[:-1]
        is_first[0] |= keys[0] != last
        firsts.append(np.flatnonzero(is_first) + num_rows)
        num_rows, last = num_rows + len(keys), keys[-1]
    return np.concatenate(firsts)


def _keys(path: Path, by: ByColumn) -> Keys:
    return by.keys(read_partition(path, [by.column]))


def _is_sorted(split: RawSplit, by: ByColumn) -> bool:
    last = None
    for path in split.partitions:
        keys = _keys(path, by)
        if (keys[1:] < keys[:-1]).any() or (last is not None and keys[0] < last):
            return False
        last = keys[-1]
    return True


def _edges(split: RawSplit, by: ByColumn, num_ranges: int) -> Keys:
    """Return the keys at which ranges begin, estimated from evenly spaced rows to bound memory."""
    step = -(-split.num_rows // _MAX_SAMPLE)
    sample = np.sort(np.concatenate([_keys(path, by)[::step] for path in split.partitions]))
    return sample[np.arange(1, num_ranges) * len(sample) // num_ranges]
