"""Parsing of hexadecimal ids, such as Criteo's categories."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_DIGITS = 15
_DIGITS = b"0123456789abcdefABCDEF"
_VALUES = np.full(256, 0xFF, dtype=np.uint8)  # non-digits have bits set above the lower four
for _digit in _DIGITS:
    _VALUES[_digit] = int(chr(_digit), 16)
# Masks that keep the first 0 … 8 bytes of a word.
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
_NOT_DIGITS = np.uint64(0xF0F0F0F0F0F0F0F0)
_FEW_ROWS = 64  # up to this size, a Python loop is faster than NumPy


def numbers_of_hex(strings: pa.LargeBinaryArray) -> NDArray[np.float64]:
    """Parse hexadecimal numbers in lower or upper case; no string may be null.

    Returns:
        float64 [num_rows]; NaN for strings that are not 1 to 15 digits. Numbers of up to 13 digits are exact, longer
        ones are rounded to 53 bits.
    """
    if len(strings) <= _FEW_ROWS:
        return np.array([_number_of(string) for string in strings.to_pylist()], dtype=np.float64)
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    ends, lengths = offsets[1:] - offsets[0], np.diff(offsets)
    values = np.zeros(offsets[-1] - offsets[0] + 8, dtype=np.uint8)  # 8 spare bytes, which the last word may read
    if data_buffer is not None:
        values[:-8] = _VALUES[np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]]
    words: NDArray[np.uint64] = np.ndarray(len(values) - 7, dtype="<u8", buffer=values.data, strides=(1,))
    last = np.minimum(lengths, 8)
    numbers, valid = _joined(words[ends - last], last)
    if len(longer := np.flatnonzero(lengths > 8)):
        first = np.minimum(lengths[longer] - 8, 8)
        high, high_valid = _joined(words[ends[longer] - lengths[longer]], first)
        numbers[longer] |= high << np.uint64(32)
        valid[longer] &= high_valid
    valid &= (lengths > 0) & (lengths <= MAX_DIGITS)
    return np.where(valid, numbers.astype(np.float64), np.nan)


def _joined(words: NDArray[np.uint64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Combine the digits in the first bytes of each word to a 32-bit number. Also return whether all are digits."""
    words &= _MASKS[lengths]
    valid = (words & _NOT_DIGITS) == 0
    words = words.byteswap()
    words >>= ((8 - lengths) * 8).astype(np.uint64)
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        words |= words >> np.uint64(shift)
        words &= np.uint64(mask)
    return words, valid


def _number_of(string: bytes) -> float:
    is_number = 0 < len(string) <= MAX_DIGITS and not string.strip(_DIGITS)
    return float(int(string, 16)) if is_number else np.nan
