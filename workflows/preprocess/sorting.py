"""Sorts the rows of a split by time or by group, so that its latest rows, or whole groups, can be held out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.workflows.preprocess.partitions import FilesWriter, RawSplit, read_partition
from rankline.workflows.preprocess.splits import NO_GROUP, ByColumn, Keys

_MAX_SAMPLE = 1 << 22
_MAX_RANGES = 64  # each has an open file


def sorted_split(
    split: RawSplit, by: ByColumn, scratch: Path, *, partition_rows: int, dictionaries: Sequence[str]
) -> RawSplit:
    """Return the split with its rows in the order of their keys; rows with equal keys keep their order.

    Rows that are not in order are divided into ranges of keys, which are sorted one by one. A range has about
    `partition_rows` rows, or a `_MAX_RANGES`th of all rows if that is more.
    """
    if _is_sorted(split, by):
        return split
    edges = _edges(split, by, min(-(-split.num_rows // partition_rows), _MAX_RANGES))
    rows_at_once = max(partition_rows // (len(edges) + 1), 1)
    ranges = [
        FilesWriter(
            scratch / f"range-{number}", rows_per_file=partition_rows, rows_per_group=rows_at_once, dictionaries=()
        )
        for number in range(len(edges) + 1)
    ]
    for path in split.partitions:
        rows = read_partition(path).cast(split.schema)
        path.unlink()
        numbers = np.searchsorted(edges, by.keys(rows), side="right")
        for number in np.unique(numbers):
            ranges[number].write(rows.filter(pa.array(numbers == number)))
    writer = FilesWriter(scratch / "sorted", rows_per_file=partition_rows, dictionaries=dictionaries)
    for number, one in enumerate(ranges):
        files = one.close()
        if 0 < number < len(edges) and edges[number] == _after(edges[number - 1]):  # all keys are equal
            for path in files:
                writer.write(read_partition(path))
        elif files:
            rows = pa.concat_tables(map(read_partition, files))
            writer.write(rows.take(pa.array(np.argsort(by.keys(rows), kind="stable"))))
        for path in files:
            path.unlink()
    return replace(split, partitions=tuple(writer.close()))


def first_rows_of_groups(split: RawSplit, by: ByColumn) -> npt.NDArray[np.int64]:
    """Return the index of the first row of each group in a sorted split. Every row without a group is a group."""
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
    """Return the keys at which ranges begin, estimated from evenly spaced rows to bound memory.

    A key with more rows than a range gets one of its own, which need not be sorted.
    """
    step = -(-split.num_rows // _MAX_SAMPLE)
    sample = np.sort(np.concatenate([_keys(path, by)[::step] for path in split.partitions]))
    edges, counts = np.unique(sample[np.arange(1, num_ranges) * len(sample) // num_ranges], return_counts=True)
    return np.union1d(edges, _after(edges[counts > 1]))


def _after(keys: Keys) -> Keys:
    """Return the next larger keys."""
    larger: Keys = keys + np.uint64(1) if keys.dtype == np.uint64 else np.nextafter(keys, np.inf)
    return larger
