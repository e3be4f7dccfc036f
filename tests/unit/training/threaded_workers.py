"""Workers as threads of one process, for what needs arrays of all but no gradients."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np

from training.world import Array, Solo


class Place(Solo):
    """What a worker knows of itself, without any others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


class ThreadedWorker(Place):
    """A worker that gets the arrays of the others, who have to call in the same order."""

    def __init__(self, rank: int, size: int, arrays: list[Array | None], barrier: Barrier) -> None:
        super().__init__(rank, size)
        self._arrays, self._barrier = arrays, barrier

    def all_gather(self, array: Array) -> Array:
        self._arrays[self.rank] = array
        self._barrier.wait()
        rows = np.concatenate([array for array in self._arrays if array is not None])
        self._barrier.wait()
        return rows

    def all_gather_object(self, value: Any) -> list[Any]:
        return self.all_gather(np.array([value])).tolist()


def of_all_workers(size: int, work: Callable[[Any], Any]) -> list[Any]:
    """What each of `size` workers makes."""
    arrays, barrier = [None] * size, Barrier(size, timeout=300)  # ends what hangs

    def of_one(rank: int) -> Any:
        try:
            return work(ThreadedWorker(rank, size, arrays, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(of_one, range(size)))
