"""Where a loader is in its data: epochs one after another, and a position that can be saved and taken up again.

And what the faces of the loader for each framework share.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import Batch, BatchStream, StreamOptions, Transform
from rankline.workflows.core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_OPTIONS = tuple(StreamOptions.__annotations__)


class Epochs(Generic[T]):
    """Passes over a stream, each with its own order."""

    def __init__(self, stream: BatchStream, make: Callable[[Batch], T]) -> None:
        self.stream, self._make = stream, make
        self._next = (0, 0)  # epoch and batch that the next pass begins with
        self._at = (0, 0)  # what comes after the batch that was handed out last

    @property
    def epoch(self) -> int:
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
        """Take up the position of `state_dict`: the next pass has exactly the batches that were left."""
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


class ParquetLoader(Generic[T]):
    """A loader of Parquet files as a framework sees it, without the tensors.

    Files are opened at once. Columns are looked for when the loader is first used, since `map` may make them.
    """

    def _set_up(
        self,
        dataset: Any,
        batch_size: int,
        cats: Sequence[str],
        conts: Sequence[str],
        labels: Sequence[str],
        options: StreamOptions,
        *,
        stack_labels: bool,
    ) -> None:
        """Check the options, and open the files."""
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise ConfigError(f"the loader has no option {unknown[0]!r}. Available: {', '.join(_OPTIONS)}.")
        if both := sorted(set(cats) & set(conts)):
            raise ConfigError(
                f"columns {both} are named as ids (int64) and as numbers (float32), but a batch has one tensor per "
                "name. Name them once, or write the column twice under two names."
            )
        if stack_labels and (ids := sorted(set(cats) & set(labels))):
            raise ConfigError(f"labels {ids} are ids, which stay int64 and cannot be stacked. Leave out stack_labels.")
        # A label that is an id, too, stays int64: float32 does not hold all whole numbers above 2**24.
        self._dtypes: dict[str, npt.DTypeLike] = {
            **dict.fromkeys(cats, np.int64),
            **dict.fromkeys(conts, np.float32),
            **{name: np.float32 for name in labels if name not in cats},
        }
        self._input_names = tuple(dict.fromkeys((*cats, *conts)))
        self._files = dataset if isinstance(dataset, ParquetFiles) else ParquetFiles(dataset)
        self._batch_size, self._options, self._stack_labels = batch_size, options, stack_labels
        self._transform: Transform | None = None

    def _tensors(self, batch: Batch) -> T:
        """What a batch is in the framework; called in the background."""
        raise NotImplementedError

    def map(self, workflow: Any) -> "Self":
        """Make the columns by an NVTabular workflow, row group by row group, in the background; before the first batch.

        Args:
            workflow: a fitted workflow that keeps every row. What it reads comes from the files, what it does not
                make too. A hashed value gets the same bucket in every row, which NVTabular on a CPU does not see to.
        """
        from rankline.workflows.nvt.online import OnlineWorkflow  # NVTabular takes seconds to import

        if "_epochs" in self.__dict__:
            raise ConfigError("map was called after the loader was used. Call it before the first batch.")
        self._transform = OnlineWorkflow(workflow, keep=list(self._dtypes))
        return self

    @property
    def num_rows(self) -> int:
        return self._epochs.stream.num_rows

    def __len__(self) -> int:
        return len(self._epochs.stream)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out, as plain values.

        It is the position of the model where you iterate over the loader yourself: Keras's `fit` reads some batches
        ahead, and worker processes have positions of their own.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a saved position: the next pass has exactly the batches that were left of its epoch."""
        self._epochs.load_state_dict(state)

    @cached_property
    def _epochs(self) -> Epochs[T]:
        return Epochs(self._stream(self._options), self._tensors)

    def _stream(self, options: StreamOptions) -> BatchStream:
        return BatchStream(
            self._files,
            list(self._dtypes),
            batch_size=self._batch_size,
            dtypes=self._dtypes,
            transform=self._transform,
            **options,
        )
