"""Where a loader is in its data: epochs one after another, and a position that can be saved and taken up again."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, Generic, TypeVar

from training.loader.chunks import Batch, ChunkStream

T = TypeVar("T")


class Epochs(Generic[T]):
    """Passes over a stream, each with its own order.

    Args:
        stream: the batches of an epoch.
        make: what is made of each batch; called in the background.
    """

    def __init__(self, stream: ChunkStream, make: Callable[[Batch], T]) -> None:
        self.stream, self._make = stream, make
        self._next = (0, 0)  # epoch and batch that the next pass begins with
        self._at = (0, 0)  # what comes after the batch that was handed out last

    @property
    def epoch(self) -> int:
        """The epoch that the next pass reads."""
        return self._next[0]

    @property
    def is_resuming(self) -> bool:
        """Whether the next pass has only what is left of its epoch."""
        return self._next[1] > 0

    def __iter__(self) -> Iterator[T]:
        """The next pass; the one after it is a new epoch, whether or not this one is read to its end."""
        passing = self.again()
        self.skip()
        return passing

    def again(self) -> Generator[T, None, None]:
        """The same pass as the next one, without moving on."""
        return self._batches(*self._next)

    def skip(self) -> None:
        """Move on to the next epoch."""
        self._next = (self.epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was handed out last, as plain values."""
        return {"epoch": self._at[0], "batch": self._at[1], **self.stream.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position of `state_dict`: the next pass has exactly the batches that were left.

        Raises:
            ConfigError: the state was saved for other data or with other options.
        """
        self.stream.take_up(state)
        self._next = self._at = (state["epoch"], state["batch"])

    def first(self) -> T | None:
        """The first batch of the next pass, which stays the first one; None if there is none."""
        with closing(self.stream.made(self._make, *self._next)) as batches:
            return next(batches, None)

    def _batches(self, epoch: int, start: int) -> Generator[T, None, None]:
        with closing(self.stream.made(self._make, epoch, start)) as batches:
            for number, batch in enumerate(batches, start + 1):
                self._at = (epoch, number) if number < len(self.stream) else (epoch + 1, 0)
                yield batch
