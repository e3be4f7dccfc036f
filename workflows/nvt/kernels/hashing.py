"""A hash of ids and strings that is independent of process, row position and library version.

Numbers go through the finalizer of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
2014), a bijection on 64-bit words, so distinct ids collide only through the modulus. Strings are mixed eight bytes at a
time and then finalized in the same way; long strings are hashed with BLAKE2.
"""

import hashlib
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Values: TypeAlias = "NDArray[Any] | pa.LargeBinaryArray"
"""Numbers [num_rows], or UTF-8 strings."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
# Masks that keep the first 0 … 8 bytes of a word, for the end of a string.
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
_MAX_WORD = (1 << 64) - 1
_LONG_BYTES = 128
_FEW_ROWS = 16  # up to this size, a Python loop is faster than NumPy
_LARGEST_WHOLE = 2.0**63


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash each id of an array of any shape independently."""
    words = np.ascontiguousarray(ids, dtype=np.int64).view(np.uint64).copy()
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def hash_strings(strings: pa.LargeBinaryArray, seed: int = 0) -> NDArray[np.uint64]:
    """Hash each UTF-8 string independently, without nulls. `seed` selects the hash function and is below 2^15."""
    if len(strings) <= _FEW_ROWS:
        return np.array([_hash_of(string, seed) for string in strings.to_pylist()], dtype=np.uint64)
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    data = np.zeros(offsets[-1] - offsets[0] + 8, dtype=np.uint8)  # 8 spare bytes, which the last word may read
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
    if len(string) > _LONG_BYTES:
        digest = hashlib.blake2b(string, digest_size=8, salt=seed.to_bytes(2, "little")).digest()
        return int.from_bytes(digest, "little")
    mixed = _finalised(len(string) + (seed << 48))
    for begin in range(0, len(string), 8):
        mixed = ((mixed ^ int.from_bytes(string[begin : begin + 8], "little")) * int(_MULTIPLIER)) & _MAX_WORD
        mixed ^= mixed >> 32
    return _finalised(mixed)


def _finalised(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MAX_WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MAX_WORD
    return word ^ (word >> 31)


def hash_values(values: Values) -> NDArray[np.uint64]:
    """Hash numbers or strings without missing values. Equal integers and floats have the same hash."""
    if isinstance(values, pa.Array):
        return hash_strings(values)
    if values.dtype.kind != "f":
        return hash_ids(values.astype(np.int64, copy=False))
    whole = (values == np.trunc(values)) & (np.abs(values) < _LARGEST_WHOLE)
    keys = values.astype(np.float64).view(np.int64).copy()
    keys[whole] = values[whole].astype(np.int64)
    return hash_ids(keys)


def bucket_of(values: Values, num_buckets: int) -> NDArray[np.int64]:
    """Return the bucket in [0, num_buckets) of each value; no value may be missing."""
    return (hash_values(values) % np.uint64(num_buckets)).astype(np.int64)


def bucket_of_many(columns: list[NDArray[np.uint64]], num_buckets: int) -> NDArray[np.int64]:
    """Return the bucket in [0, num_buckets) of the combined hashes of several columns. The order of columns matters.

    Each column has shape [num_rows], with hash 0 for missing values.
    """
    combined = columns[0]
    for hashes in columns[1:]:
        combined = hash_ids(combined.view(np.int64)) ^ hashes
    return (combined % np.uint64(num_buckets)).astype(np.int64)
