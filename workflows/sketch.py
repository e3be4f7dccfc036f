"""How many distinct values there are, from a few thousand bytes whatever the size of the data.

HyperLogLog (Flajolet, Fusy, Gandouet & Meunier, 2007) by the estimator of Ertl, "New cardinality estimation algorithms
for HyperLogLog sketches", 2017. The standard error is 0.8 %. The sketch of two parts is the maximum of theirs.
"""

import numpy as np
from numpy.typing import NDArray

_BITS = 14
NUM_REGISTERS = 1 << _BITS


def sketch_of_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """HyperLogLog registers [2^14] of values, by their hashes."""
    # What follows the bits that choose the register: 50 bits, which a float64 holds; its exponent tells leading zeros.
    left = hashes << np.uint64(_BITS)
    _, exponents = np.frexp(left.astype(np.float64))
    ranks = np.where(left > 0, 65 - exponents, 65 - _BITS).astype(np.uint8)
    registers = np.zeros(NUM_REGISTERS, dtype=np.uint8)
    np.maximum.at(registers, (hashes >> np.uint64(64 - _BITS)).astype(np.int64), ranks)
    return registers


def num_distinct_of(registers: NDArray[np.uint8]) -> float:
    """Ertl's improved raw estimator; registers that are full do not occur among fewer than 2^60 values."""
    counts = np.bincount(registers, minlength=65 - _BITS) / NUM_REGISTERS
    if counts[0] == 1:
        return 0.0
    total = 0.0
    for count in counts[64 - _BITS : 0 : -1]:
        total = (total + count) / 2
    power, weight, empty = counts[0], 1.0, counts[0]
    while (power := power**2) * weight > 0:
        empty += power * weight
        weight *= 2
    return float(NUM_REGISTERS / (2 * np.log(2) * (total + empty)))
