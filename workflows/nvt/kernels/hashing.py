"""A hash of ids and strings that is the same for every process, row position and library version.

Numbers go through the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
2014), a bijection on 64-bit words, so distinct ids collide only through the modulus. Strings are mixed eight bytes at a
time and finished by it; long ones by BLAKE2.
"""

import hashlib
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Values: TypeAlias = "NDArray[Any] | pa.LargeBinaryArray"
"""Numbers [num_rows], or strings as UTF-8."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
# Bytes of a word that belong to a string of which 0 … 8 bytes are left.
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
_MAX_WORD = (1 << 64) - 1
_LONG_BYTES = 128
_FEW_ROWS = 16  # for which NumPy takes longer to start than Python to finish
_LARGEST_WHOLE = 2.0**63


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each id on its own.

    Args:
        ids: int64, any shape.

    Returns:
        uint64 of the same shape.
    """
    words = np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64).copy()
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def hash_strings(strings: pa.LargeBinaryArray, seed: int = 0) -> NDArray[np.uint64]:
    """Hash each string on its own.

    Args:
        strings: UTF-8, none of them null.
        seed: another seed, another hash; below 2^15.

    Returns:
        uint64 [num_rows].
    """
    if len(strings) <= _FEW_ROWS:
        return np.array([_hash_of(string, seed) for string in strings.to_pylist()], dtype=np.uint64)
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    data = np.zeros(offsets[-1] - offsets[0] + 8, dtype=np.uint8)  # 8 more, so that a word may reach over the end
    if data_buffer is not None:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    words: NDArray[np.uint64] = np.ndarray(len(data) - 7, dtype="<u8", buffer=data.data, strides=(1,))
    hashes = hash_ids(lengths + (seed << 48))
    for begin in range(0, min(int(lengths.max()), _LONG_BYTES), 8):
        rows = np.flatnonzero(lengths > begin)
        left = np.minimum(lengths[rows] - begin, 8)
        mixed = (hashes[rows] ^ (words[starts[rows] + begin] & _MASKS[left])) * _MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> np.uint64(32))
    hashes = hash_ids(hashes.view(np.int64))
    for row in np.flatnonzero(lengths > _LONG_BYTES):
        hashes[row] = _hash_of(strings[int(row)].as_py(), seed)
    return hashes


def _hash_of(string: bytes, seed: int) -> int:
    """The hash of one string, on Python's integers."""
    if len(string) > _LONG_BYTES:
        digest = hashlib.blake2b(string, digest_size=8, salt=seed.to_bytes(2, "little")).digest()
        return int.from_bytes(digest, "little")
    mixed = _finalised(len(string) + (seed << 48))
    for begin in range(0, len(string), 8):
        mixed = ((mixed ^ int.from_bytes(string[begin : begin + 8], "little")) * int(_MULTIPLIER)) & _MAX_WORD
        mixed ^= mixed >> 32
    return _finalised(mixed)


def _finalised(word: int) -> int:
    """`hash_ids` of one word, on Python's integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MAX_WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MAX_WORD
    return word ^ (word >> 31)


def hash_values(values: Values) -> NDArray[np.uint64]:
    """Hash numbers or strings; a whole number has one hash, be it an integer or a float.

    Args:
        values: integers, booleans, floats or UTF-8 strings, none of them missing.

    Returns:
        uint64 [num_rows].
    """
    if isinstance(values, pa.Array):
        return hash_strings(values)
    if values.dtype.kind != "f":
        return hash_ids(values.astype(np.int64, copy=False))
    whole = (values == np.trunc(values)) & (np.abs(values) < _LARGEST_WHOLE)
    keys = values.astype(np.float64).view(np.int64).copy()
    keys[whole] = values[whole].astype(np.int64)
    return hash_ids(keys)


def bucket_of(values: Values, num_buckets: int) -> NDArray[np.int64]:
    """Bucket in [0, num_buckets) of each value.

    Args:
        values: integers, booleans, floats or UTF-8 strings, none of them missing.
        num_buckets: at least 1.
    """
    return (hash_values(values) % np.uint64(num_buckets)).astype(np.int64)


def bucket_of_many(columns: list[NDArray[np.uint64]], num_buckets: int) -> NDArray[np.int64]:
    """Bucket in [0, num_buckets) of the hashes of several columns together; their order matters.

    Args:
        columns: hashes [num_rows] of each column, 0 where a value is missing.
        num_buckets: at least 1.
    """
    combined = columns[0]
    for hashes in columns[1:]:
        combined = hash_ids(combined.view(np.int64)) ^ hashes
    return (combined % np.uint64(num_buckets)).astype(np.int64)
