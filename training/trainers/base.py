"""What a training run asks of a framework."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rankline.training.config.train import TrainConfig
from rankline.training.distributed.communicator import SOLO, World
from rankline.training.distributed.communicator import Array as Array  # where it is known
from rankline.workflows.schema.feature_spec import FeatureSpec


class Batches(Protocol):
    """One split in batches; each pass over it is an epoch."""

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""

    def __len__(self) -> int:
        """Batches per epoch."""

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Pairs of inputs, by name, and labels, the framework's own tensors; several labels of a row are one row."""


class Trainer(ABC):
    """A model that a framework trains."""

    PYFUNC: str
    """Module through which MLflow loads the exported model."""

    PACKAGES: tuple[str, ...]
    """Distributions that the exported model needs; those that are installed count."""

    _average: "Average | None"
    _loss_sum: Any
    _added_sum: Any

    @abstractmethod
    def __init__(
        self,
        spec: FeatureSpec,
        config: TrainConfig,
        num_steps: int,
        *,
        world: World = SOLO,
        laid_out_for: int | None = None,
    ) -> None: ...

    @staticmethod
    @abstractmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        """Refuse what the framework cannot do, before anything is begun."""

    @staticmethod
    @abstractmethod
    def sees_gpu() -> bool:
        """Whether there is a GPU to train on."""

    @staticmethod
    @abstractmethod
    def deterministic() -> AbstractContextManager[None]:
        """In the block the framework takes kernels only that give the same bits in each run, on any device."""

    @staticmethod
    @abstractmethod
    def batches(
        prepared: Path,
        spec: FeatureSpec,
        split: str,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        size: int = 1,
    ) -> Batches:
        """A split of prepared data as the framework takes it, or the share of it that worker `rank` of `size` has."""

    def share_state(self) -> None:  # noqa: B027  (nothing to do for one worker)
        """Give all workers the state of worker 0, but that each draws its own dropout."""

    @abstractmethod
    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        """Learn from one batch, together with the other workers.

        Raises:
            WorkerLostError: see `rankline.training.distributed.communicator.World`.
        """

    def loss_sum(self) -> float:
        """Sum of the losses of all rows that were trained on, by all workers, each as it was at its step."""
        return float(self._loss_sum)

    def added_sum(self) -> float:
        """Sum of what was added to these losses: penalties, and the auxiliary losses of DIEN and SIM."""
        return float(self._added_sum)

    @abstractmethod
    def diverged_at(self) -> int | None:
        """The first step, counted from 1, whose loss was not finite; None if all were."""

    @abstractmethod
    def num_parameters(self) -> tuple[int, int]:
        """Weights in embedding tables, and all others."""

    def average(self) -> None:
        """Take the weights into their average; nothing to do without `weight_averaging`."""
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """In the block `score` uses the average, if there is one."""
        return swapped(self._average)

    @abstractmethod
    def score(self, inputs: Mapping[str, Any]) -> Array:
        """What the heads say of a batch, side by side: shape (N,) of a single number, else (N, sum of widths)."""

    @abstractmethod
    def array(self, tensor: Any) -> Array:
        """A tensor of a batch as an array: of shape (N,) with one value per row, else (N, values)."""

    @abstractmethod
    def weights(self) -> Sequence[Array]:
        """A copy of the weights to keep: the average, if there is one."""

    @abstractmethod
    def set_weights(self, weights: Sequence[Array]) -> None:
        """Put such a copy into the model."""

    @abstractmethod
    def state(self) -> Mapping[str, Array]:
        """All that a run of the same config needs to go on exactly: weights, their average, what the optimizer and the
        loss scaling remember, sums of the loss, and the random generators of dropout."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Take up such a state. Only worker 0 needs one: `share_state` gives it to the others."""

    @abstractmethod
    def export(self, path: Path) -> None:
        """Write the model in its framework's format."""


class Average(Protocol):
    """An average of a model's weights over a run."""

    def update(self) -> None:
        """Take in the weights as they are."""

    def swap(self) -> None:
        """Exchange the average and the weights."""


@contextmanager
def swapped(average: Average | None) -> Iterator[None]:
    """In the block the model has the average for its weights, if there is one."""
    if average is not None:
        average.swap()
    try:
        yield
    finally:
        if average is not None:
            average.swap()


def share_of_sample(number: Any) -> Any:
    """The share with which a sample of the weights enters their average, so that late ones count more.

    Polynomial-decay averaging (Shamir & Zhang 2013, "Stochastic Gradient Descent for Non-smooth Optimization", section
    4): the t-th sample enters with share (η + 1) / (t + η), η = 0.5.
    """
    return 1.5 / (number + 0.5)
