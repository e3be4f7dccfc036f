"""A hash of integer ids that is the same for every process, row position and NumPy version.

It is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", 2014), a
bijection on 64-bit words, so distinct ids collide only through the modulus.
"""

import numpy as np
from numpy.typing import NDArray


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


def bucket_of(ids: NDArray[np.int64], num_buckets: int) -> NDArray[np.int64]:
    """Bucket in [0, num_buckets) of each id.

    Args:
        ids: int64, any shape.
        num_buckets: at least 1.
    """
    return (hash_ids(ids) % np.uint64(num_buckets)).astype(np.int64)
