"""Worlds of several workers of which only one is here."""

from typing import Any

import numpy as np

from rankline.training.distributed.communicator import Array, SingleProcess


class FakeTwoWorkers(SingleProcess):
    """A world whose other worker has sent these arrays, as they are gathered, and `said` plain values."""

    size = 2

    def __init__(self, sent: list[Array], *, rank: int = 0, said: Any = None) -> None:
        self._sent, self.rank, self._said = sent, rank, said

    def all_gather(self, array: Array) -> Array:
        parts = [array, self._sent.pop(0)]
        return np.concatenate(parts if self.rank == 0 else parts[::-1])

    def all_gather_object(self, value: Any) -> list[Any]:
        said = [value, self._said]
        return said if self.rank == 0 else said[::-1]
