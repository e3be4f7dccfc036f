"""Passes over batches: several as one epoch, and rows that stay in memory after the first."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from training.loader.memory import available_bytes
from training.trainers.base import Batches
from workflows.errors import ConfigError

Batch = tuple[Mapping[str, Any], Any]

_KEPT_SHARE = 0.25  # of the memory that is available


def repeated(batches: Batches, times: int) -> Batches:
    """Batches whose epoch is several passes over others, each pass in the order that it would have as an epoch.

    Args:
        batches: not read yet. Where they have a position that can be saved, so has the result.
        times: passes per epoch.

    Raises:
        ConfigError: `times` is below 1.
    """
    if times < 1:
        raise ConfigError(f"times is {times}, expected a whole number of at least 1.")
    if times == 1:
        return batches
    return _PositionedPasses(batches, times) if hasattr(batches, "load_state_dict") else _Passes(batches, times)


class _Passes:
    def __init__(self, batches: Batches, times: int) -> None:
        self._batches: Any = batches
        self._times = times
        self._done = 0  # passes that the next epoch leaves out

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return self._times * int(self._batches.num_rows)

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._times * len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or what is left of it."""
        done, self._done = self._done, 0
        for _ in range(done, self._times):
            yield from self._batches


class _PositionedPasses(_Passes):
    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out, as plain values."""
        inner = self._batches.state_dict()
        epoch, done = divmod(inner["epoch"], self._times)
        return {**inner, "epoch": epoch, "batch": done * len(self._batches) + inner["batch"], "times": self._times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved position.

        Raises:
            ConfigError: the state was saved for other data or with other options.
        """
        if state.get("times") != self._times:
            raise ConfigError(
                f"the saved position is of {state.get('times', 1)} passes per epoch, got {self._times}. Go on with as "
                "many, or start anew."
            )
        done, batch = divmod(state["batch"], len(self._batches))
        self._batches.load_state_dict({**state, "epoch": state["epoch"] * self._times + done, "batch": batch})
        self._done = done


class CachedBatches:
    """TensorFlow batches that stay in memory after the first whole pass, if they fit.

    Args:
        batches: the same in each pass.
        max_bytes: they may take together; None for a quarter of the memory that is available at the first pass.
    """

    def __init__(self, batches: Batches, max_bytes: int | None = None) -> None:
        self._batches, self._max_bytes = batches, max_bytes
        self._kept: list[Batch] | None = None

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""
        return self._batches.num_rows

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """One pass."""
        return self._first_pass() if self._kept is None else iter(self._kept)

    def _first_pass(self) -> Iterator[Batch]:
        left = int(_KEPT_SHARE * available_bytes()) if self._max_bytes is None else self._max_bytes
        kept: list[Batch] = []
        for batch in self._batches:
            left -= sum(_num_bytes(tensor) for tensor in (*batch[0].values(), batch[1]))
            if left >= 0:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        if left >= 0:
            self._kept = kept


def _num_bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape) * tensor.dtype.size)
