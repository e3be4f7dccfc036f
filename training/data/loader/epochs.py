"""Iteration over epochs from a position that can be saved and restored, and the base class of all Parquet loaders."""

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
    """An iterable over a stream's batches. Each pass is one epoch with its own row order."""

    def __init__(self, stream: BatchStream, make: Callable[[Batch], T]) -> None:
        self.stream, self._make = stream, make
        self._next = (0, 0)  # epoch and batch at which the next pass starts
        self._at = (0, 0)  # epoch and batch after the last one returned

    @property
    def epoch(self) -> int:
        return self._next[0]

    @property
    def is_resuming(self) -> bool:
        """Whether the next pass starts in the middle of its epoch."""
        return self._next[1] > 0

    def __iter__(self) -> Iterator[T]:
        """Start the next pass, and advance to the following epoch even if this pass is not exhausted."""
        passing = self.again()
        self.skip()
        return passing

    def again(self) -> Generator[T, None, None]:
        """Start the next pass without advancing, so that calling it again repeats the same epoch."""
        return self._batches(*self._next)

    def skip(self) -> None:
        self._next = (self.epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._at[0], "batch": self._at[1], **self.stream.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.take_up(state)
        self._next = self._at = (state["epoch"], state["batch"])

    def first(self) -> T | None:
        """Return the first batch of the next pass without consuming it, or None if the pass has no batches."""
        with closing(self.stream.made(self._make, *self._next)) as batches:
            return next(batches, None)

    def _batches(self, epoch: int, start: int) -> Generator[T, None, None]:
        with closing(self.stream.made(self._make, epoch, start)) as batches:
            for number, batch in enumerate(batches, start + 1):
                self._at = (epoch, number) if number < len(self.stream) else (epoch + 1, 0)
                yield batch


class ParquetLoader(Generic[T]):
    """Base class of the Parquet loaders. Subclasses convert batches to tensors or arrays.

    The files are opened at once. Columns are checked at first use, because `map` may create them.
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
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise ConfigError(f"the loader has no option {unknown[0]!r}. Available: {', '.join(_OPTIONS)}.")
        if both := sorted(set(cats) & set(conts)):
            raise ConfigError(
                f"columns {both} are listed both as ids (int64) and as numbers (float32), but a batch has one "
                "tensor per name. List each column once, or store the column under two names."
            )
        if stack_labels and (ids := sorted(set(cats) & set(labels))):
            raise ConfigError(f"labels {ids} are int64 ids, which cannot be stacked. Omit stack_labels.")
        # A label that is also an id stays int64, because float32 cannot represent all integers above 2**24.
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
        """Convert a batch to the framework's tensors. Called in background threads."""
        raise NotImplementedError

    def map(self, workflow: Any) -> "Self":
        """Compute the columns with an NVTabular workflow, in the background. Call it before the first batch.

        Args:
            workflow: a fitted workflow that keeps every row. Its inputs, and columns that it does not produce, come
                from the files. It runs on one row group at a time, and a hashed value always gets the same bucket,
                which NVTabular does not guarantee on a CPU.
        """
        from rankline.workflows.nvt.fitted import OnlineWorkflow  # NVTabular takes seconds to import

        if "_epochs" in self.__dict__:
            raise ConfigError("map() was called after iteration had started. Call map() before the first batch.")
        self._transform = OnlineWorkflow(workflow, keep=list(self._dtypes))
        return self

    @property
    def num_rows(self) -> int:
        return self._epochs.stream.num_rows

    def __len__(self) -> int:
        return len(self._epochs.stream)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last returned batch, as built-in types.

        It is the model's position only if you iterate over the loader yourself: Keras's `fit` reads a few batches
        ahead, and worker processes have their own positions.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved position. The next pass yields exactly the remaining batches of the epoch."""
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
