from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.nvt.keys import hash_strings
from rankline.workflows.preprocess.config import RowsConfig
from rankline.workflows.preprocess.raw import StreamedRows

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[Any]
"""Times (float64), or hashes of groups (uint64)."""

NO_GROUP = np.uint64(0)
_MAX_TIMES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ByColumn:
    """Assigns each row to a split by the row's value in one column, regardless of other rows."""

    column: str  # name of the raw column
    begin: float | None = None  # rows with at least this value are for validation; None to split by group
    share: float = 0.0  # share of groups to validate on
    seed: int = 0  # seed that selects these groups

    def keys(self, rows: pa.Table | pa.RecordBatch) -> Keys:
        """Return times, or hashes of groups. A missing time is -inf, a missing group `NO_GROUP`."""
        values = rows[self.column]
        if self.begin is not None:
            return _times(values)
        distinct = (values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values).dictionary_encode()
        named = hash_strings(distinct.dictionary.cast(pa.large_string()).cast(pa.large_binary()), self.seed % (1 << 15))
        of_rows: npt.NDArray[np.uint64] = np.append(named, NO_GROUP)[
            distinct.indices.cast(pa.int64()).fill_null(len(named))
        ]
        return of_rows

    def are_valid(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a mask of the validation rows. Rows whose time or group is missing are training rows."""
        keys = self.keys(rows)
        if self.begin is not None:
            valid: npt.NDArray[np.bool_] = keys >= self.begin
        else:
            valid = (keys < np.uint64(self.share * (2.0**64 - 2**12))) & (keys != NO_GROUP)
        return valid


def split_by_column(
    rows: pa.Table | StreamedRows, config: RowsConfig, time: str | None, group: str | None
) -> ByColumn | None:
    """Return the `ByColumn` rule for splitting rows, or None if the config splits them by position.

    A stream that is split by time is read once; without a column of times, it is in order already.
    """
    if config.split == "group":
        if group is None:
            raise ConfigError(
                "the rows have no group column, so they cannot be split by group. Split at random or by time."
            )
        return ByColumn(column=group, share=config.valid_share, seed=config.split_seed)
    if config.split != "time" or time is None or isinstance(rows, pa.Table):
        return None
    return ByColumn(column=time, begin=_boundary(rows, time, config.valid_share))


def _times(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    times = values.cast(pa.float64(), safe=False).fill_null(-np.inf).to_numpy()
    return np.where(np.isnan(times), -np.inf, times)


def _boundary(rows: StreamedRows, time: str, valid_share: float) -> float:
    """Return the start time of the validation rows, estimated from an evenly spaced sample to bound memory."""
    kept, step, offset = np.zeros(0), 1, 0
    for batch in rows.batches():
        times = _times(batch[time])
        kept = np.append(kept, times[-offset % step :: step])
        offset += len(times)
        while len(kept) > _MAX_TIMES:
            kept, step = kept[::2], 2 * step
    kept.sort()
    begin = float(kept[min(_num_train(len(kept), valid_share), len(kept) - 1)])
    if not kept[0] < begin:
        raise ConfigError(
            f"{time!r} has the same value in at least {1 - valid_share:.0%} of the rows, so no cutoff time can split "
            "them. Split at random, or use another valid_share."
        )
    return begin


def split_rows(
    rows: pa.Table | StreamedRows, config: RowsConfig, time: str | None, by: ByColumn | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Split raw rows according to a config. Tables are split as a whole, streams batch by batch.

    Yields:
        "train" or "valid", and rows of that split.
    """
    if not isinstance(rows, pa.Table):
        yield from split_batches(rows.batches(), rows.periods, config, by=by)
        return
    if by is not None:
        yield from _parts(rows, by.are_valid(rows))
        return
    if config.split == "time":
        if time is None:
            raise ConfigError("the rows have no time column, so they cannot be split by time. Split at random.")
        times = rows[time]
        if times.null_count:  # rows without a time count as the oldest
            times = times.cast(pa.float64(), safe=False).fill_null(-np.inf)
        parts = time_split(times.to_numpy(), config.valid_share)
    else:
        parts = random_split(len(rows), config.valid_share, config.split_seed)
    for name, part in zip(("train", "valid"), parts, strict=True):
        yield name, rows.take(pa.array(part))


def split_batches(
    batches: Iterable[pa.RecordBatch],
    periods: Sequence[int],
    config: RowsConfig,
    first_row: int = 0,
    by: ByColumn | None = None,
) -> Iterator[tuple[str, pa.Table]]:
    """Split the batches of a stream whose first row has the number `first_row`. Yield split names ("train" or "valid")
    and their rows.

    `periods` are those of the whole stream.
    """
    are_valid = _split_of_stream(periods, config, first_row)
    for batch in batches:
        table = pa.Table.from_batches([batch])
        yield from _parts(table, are_valid(batch.num_rows) if by is None else by.are_valid(table))


def _parts(table: pa.Table, valid: npt.NDArray[np.bool_]) -> Iterator[tuple[str, pa.Table]]:
    for name, mask in (("train", ~valid), ("valid", valid)):
        if mask.all():
            yield name, table
        elif mask.any():
            yield name, table.filter(pa.array(mask))


def random_split(num_rows: int, valid_share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the row numbers for training and validation. The latter are the last ones of a seeded NumPy permutation.

    The validation share is rounded up to whole rows.
    """
    num_train = _num_train(num_rows, valid_share)
    if seed < 0:
        raise ConfigError(f"seed is {seed}, expected a nonnegative integer.")
    order = np.random.default_rng(seed).permutation(num_rows)
    return order[:num_train], order[num_train:]


def time_split(timestamps: npt.ArrayLike, valid_share: float) -> tuple[Rows, Rows]:
    """Return the row numbers for training and validation, oldest first; rows with equal times keep their order.

    The validation share is rounded up to whole rows.
    """
    order = np.argsort(np.asarray(timestamps), kind="stable")
    num_train = _num_train(len(order), valid_share)
    return order[:num_train], order[num_train:]


def _split_of_stream(
    periods: Sequence[int], config: RowsConfig, first_row: int
) -> Callable[[int], npt.NDArray[np.bool_]]:
    """Return a function that maps the size of the next stream batch to a mask of its validation rows.

    By time, the validation split is the smallest number of last periods that contain at least the share. With only one
    period, it is the last rows of that period. Otherwise each row is drawn independently: a row is for validation if
    its number in `numpy.random.default_rng(split_seed).random(num_rows)` is below the share, regardless of batches.
    """
    num_rows, valid_share = sum(periods), config.valid_share
    num_train = _num_train(num_rows, valid_share)
    if config.split != "time":
        generator = np.random.PCG64(config.split_seed)  # the generator of `default_rng`
        generator.advance(first_row)  # each number takes one draw
        rng = np.random.Generator(generator)
        return lambda size: rng.random(size) < valid_share
    if len(periods) > 1:
        num_train = _rows_before_last_periods(periods, num_rows - num_train)
        if num_train == 0:
            raise ConfigError(
                f"a validation share of {valid_share} uses all periods, which have {list(periods)} rows, so none "
                f"are left for training. Use a share of at most {periods[-1] / num_rows:.3f}, or split at random."
            )
    seen = first_row

    def is_valid(size: int) -> npt.NDArray[np.bool_]:
        nonlocal seen
        seen += size
        return np.arange(seen - size, seen) >= num_train

    return is_valid


def _rows_before_last_periods(periods: Sequence[int], num_wanted: int) -> int:
    """Return the number of rows before the fewest trailing periods that together have at least `num_wanted` rows."""
    num_before = sum(periods)
    for size in reversed(periods):
        num_before -= size
        num_wanted -= size
        if num_wanted <= 0:
            break
    return num_before


def _num_train(num_rows: int, valid_share: float) -> int:
    if not 0 < valid_share < 1:
        raise ConfigError(f"the validation share is {valid_share}, expected a number between 0 and 1, e.g. 0.2.")
    # 10 * (1 - 0.9) is 0.9999999999999998; rounding first avoids losing a row.
    num_train = int(round(num_rows * (1 - valid_share), 6))
    if not 0 < num_train < num_rows:
        raise ConfigError(
            f"a validation share of {valid_share} splits {num_rows} rows into {num_train} and "
            f"{num_rows - num_train}, expected rows in both parts. Use another share or provide more rows."
        )
    return num_train
