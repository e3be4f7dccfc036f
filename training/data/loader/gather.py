"""Numba-compiled functions that gather lists by row index, because NumPy is slow at this.

NumPy would first compute the index of every value, which reads and writes eight bytes several times per value. This
loop copies lists in chunks of eight values even if a list is shorter; the next list overwrites the excess. The copy
then has no branch that depends on the data, so the CPU can fetch many lists at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]
SLACK = 8
"""Number of values that may be written past the end."""
_STEP = np.uintp(SLACK)  # unsigned like all indices below: signed indices are checked for negative values each time


def compiled(function: Any) -> Any:
    """Compile `function` with Numba when it is first called, and cache the result on disk if possible."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package directory nor the user cache is writable
        return njit(nogil=True)(function)


@compiled
def num_values(offsets: Array, rows: npt.NDArray[np.intp]) -> int:
    total = 0
    for row in rows:
        total += offsets[row + 1] - offsets[row]
    return total


@compiled
def gather_lists(
    values: Array, offsets: Array, rows: npt.NDArray[np.intp], out_values: Array, out_offsets: Array
) -> None:
    """Copy the lists at the indices `rows` into contiguous output arrays.

    Args:
        values: shape (M,).
        offsets: start of each list in `values`, and the end; shape (N + 1,).
        rows: lists to copy, shape (R,).
        out_values: receives the values; shape (`num_values` + `SLACK`,), of a type that can represent them.
        out_offsets: receives the start of each list, and the end; shape (R + 1,).
    """
    end = np.uintp(0)
    out_offsets[0] = 0
    for number in range(len(rows)):
        start = np.uintp(offsets[rows[number]])
        length = np.uintp(offsets[rows[number] + 1]) - start
        if start + _STEP <= np.uintp(len(values)):
            for place in range(_STEP):
                out_values[end + place] = values[start + place]
            for place in range(_STEP, length):
                out_values[end + place] = values[start + place]
        else:
            for place in range(length):
                out_values[end + place] = values[start + place]
        end += length
        out_offsets[number + 1] = end
