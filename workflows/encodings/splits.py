"""Which rows train and which validate."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workflows.datasets.raw import StreamedRows
from workflows.encodings.rows_config import RowsConfig
from workflows.errors import ConfigError

Rows = npt.NDArray[np.int64]


def split_rows(rows: pa.Table | StreamedRows, config: RowsConfig, time: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Split raw rows as a config says: a table as a whole, a stream batch by batch.

    Args:
        rows: raw rows.
        config: says how.
        time: column of a table that orders the rows, if there is one.

    Yields:
        "train" or "valid", and rows of it.

    Raises:
        ConfigError: a part would be empty, or there is no time to split by.
        DataError: a row of a stream is no row.
    """
    by_time = config.split == "time"
    if isinstance(rows, pa.Table):
        if by_time and time is None:
            raise ConfigError("the rows have no time, so they cannot be split by it. Split at random.")
        if by_time:
            parts = time_split(rows[time].to_numpy(), config.valid_share)
        else:
            parts = random_split(len(rows), config.valid_share, config.split_seed)
        for name, part in zip(("train", "valid"), parts, strict=True):
            yield name, rows.take(pa.array(part))
        return
    yield from split_batches(rows.batches(), rows.periods, config)


def split_batches(
    batches: Iterable[pa.RecordBatch], periods: Sequence[int], config: RowsConfig, first_row: int = 0
) -> Iterator[tuple[str, pa.Table]]:
    """Split a stretch of a stream of rows as a config says.

    Args:
        batches: the stretch.
        periods: rows of each period of the whole stream, oldest first.
        config: says how.
        first_row: rows of the stream before the stretch.

    Yields:
        "train" or "valid", and rows of it.

    Raises:
        ConfigError: a part of the whole would be empty.
        DataError: a row is no row.
    """
    by_time = config.split == "time"
    are_valid = split_of_stream(
        periods, config.valid_share, by_time=by_time, seed=config.split_seed, first_row=first_row
    )
    for batch in batches:
        table, valid = pa.Table.from_batches([batch]), are_valid(batch.num_rows)
        for name, mask in (("train", ~valid), ("valid", valid)):
            if mask.all():
                yield name, table
            elif mask.any():
                yield name, table.filter(pa.array(mask))


def random_split(num_rows: int, valid_share: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows at random: the end of `numpy.random.default_rng(seed).permutation(num_rows)` validates.

    Args:
        num_rows: number of rows.
        valid_share: share of validation rows, between 0 and 1; rounded up to whole rows.
        seed: at least 0.

    Returns:
        Row numbers of the training part and of the validation part, in the order of the permutation.

    Raises:
        ConfigError: an argument is out of its range, or a part would be empty.
    """
    num_train = _num_train(num_rows, valid_share)
    if seed < 0:
        raise ConfigError(f"The seed is {seed}, expected a whole number of at least 0.")
    order = np.random.default_rng(seed).permutation(num_rows)
    return order[:num_train], order[num_train:]


def time_split(timestamps: npt.ArrayLike, valid_share: float) -> tuple[Rows, Rows]:
    """Split rows by time: the latest validate.

    Args:
        timestamps: numbers, shape (num_rows,).
        valid_share: share of validation rows, between 0 and 1; rounded up to whole rows.

    Returns:
        Row numbers of the training part and of the validation part, oldest first; rows of equal time keep their order.

    Raises:
        ConfigError: the share is out of its range, or a part would be empty.
    """
    order = np.argsort(np.asarray(timestamps), kind="stable")
    num_train = _num_train(len(order), valid_share)
    return order[:num_train], order[num_train:]


def split_of_stream(
    periods: Sequence[int], valid_share: float, *, by_time: bool, seed: int, first_row: int = 0
) -> Callable[[int], npt.NDArray[np.bool_]]:
    """Split rows that are seen once, batch by batch, from the oldest to the latest.

    By time the fewest last periods validate that hold at least the share. If there is only one period, its last rows
    do. Otherwise each row is drawn: `numpy.random.default_rng(seed).random(num_rows)` below the share validates,
    whatever the batches are.

    Args:
        periods: rows of each period, oldest first.
        valid_share: share of validation rows, between 0 and 1.
        by_time: the latest validate, not any.
        seed: of the draw, at least 0.
        first_row: rows before those that the function is asked about.

    Returns:
        A function from the number of rows of the next batch to whether each of them validates.

    Raises:
        ConfigError: the share is out of its range, or a part would be empty.
    """
    num_rows = sum(periods)
    num_train = _num_train(num_rows, valid_share)
    if not by_time:
        generator = np.random.PCG64(seed)  # `default_rng`'s own
        generator.advance(first_row)  # one draw makes one number
        rng = np.random.Generator(generator)
        return lambda size: rng.random(size) < valid_share
    if len(periods) > 1:
        num_train = _rows_before_last_periods(periods, num_rows - num_train)
        if num_train == 0:
            raise ConfigError(
                f"the last periods that hold a share of {valid_share} are all there are: {list(periods)} rows. "
                f"Choose a share of at most {periods[-1] / num_rows:.3f}, or split at random."
            )
    seen = first_row

    def is_valid(size: int) -> npt.NDArray[np.bool_]:
        nonlocal seen
        seen += size
        return np.arange(seen - size, seen) >= num_train

    return is_valid


def _rows_before_last_periods(periods: Sequence[int], num_wanted: int) -> int:
    """Rows before the fewest last periods that hold at least so many rows."""
    num_before = sum(periods)
    for size in reversed(periods):
        num_before -= size
        num_wanted -= size
        if num_wanted <= 0:
            break
    return num_before


def _num_train(num_rows: int, valid_share: float) -> int:
    if not 0 < valid_share < 1:
        raise ConfigError(f"The validation share is {valid_share}, expected a number between 0 and 1, e.g. 0.2.")
    # 10 * (1 - 0.9) is 0.9999999999999998: without rounding first, a row would be lost.
    num_train = int(round(num_rows * (1 - valid_share), 6))
    if not 0 < num_train < num_rows:
        raise ConfigError(
            f"A validation share of {valid_share} splits {num_rows} rows into {num_train} and {num_rows - num_train}, "
            "expected rows in both parts. Choose another share or give more rows."
        )
    return num_train
