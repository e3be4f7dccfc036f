"""The one loop of the loader that NumPy cannot write well: gathering lists.

With NumPy the place of every value is computed first, which touches eight bytes several times for each value that is
moved. Here a list is copied in one go, eight values at a time whether or not it has so many: what is too much is
written over by the next one, and the loop has no branch that depends on the data, so that the processor can wait for
many lists at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.compiled import compiled

Array = npt.NDArray[Any]
SLACK = 8
"""Values that may be written behind the end."""
_STEP = np.uintp(SLACK)  # unsigned, as all places below: of a signed one is asked each time whether it is negative


@compiled
def num_values(offsets: Array, rows: npt.NDArray[np.intp]) -> int:
    """Values that the lists at `rows` have together."""
    total = 0
    for row in rows:
        total += offsets[row + 1] - offsets[row]
    return total


@compiled
def gather_lists(
    values: Array, offsets: Array, rows: npt.NDArray[np.intp], out_values: Array, out_offsets: Array
) -> None:
    """Copy the lists at `rows`, one after the other.

    Args:
        values: shape (M,).
        offsets: where each list of `values` begins, and the end; shape (N + 1,).
        rows: which lists, shape (R,).
        out_values: gets the values; shape (`num_values` + `SLACK`,), of a type that holds them.
        out_offsets: gets where each list begins, and the end; shape (R + 1,).
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
