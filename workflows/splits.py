"""Which rows train and which validate."""

import numpy as np
import numpy.typing as npt

from workflows.errors import ConfigError

Rows = npt.NDArray[np.int64]


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
