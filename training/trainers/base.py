"""The interface between a training run and a framework."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.distributed.communicator import SOLO, Communicator
from rankline.training.distributed.communicator import Array as Array  # re-exported
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.formatting import listed
from rankline.workflows.schema.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rankline.training.data.loader.stream import StreamOptions
_SHOWN = 3


class Batches(Protocol):
    """The batches of a split; each pass over it is an epoch."""

    @property
    def num_rows(self) -> int:
        """Rows per epoch."""

    def __len__(self) -> int:
        """Batches per epoch."""

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Iterate over (inputs by name, labels) as the framework's tensors; several labels of a row are columns."""


class Trainer(ABC):
    """Trains a model with a framework."""

    PYFUNC: str
    """Module with which MLflow loads the exported model."""

    PACKAGES: tuple[str, ...]
    """Distributions that the exported model needs; those that are not installed are ignored."""

    _average: Any
    """Running average of the weights, with `update`, and `swap` to exchange both; None for none."""
    _loss_sum: Any
    _added_sum: Any

    @abstractmethod
    def __init__(
        self,
        spec: FeatureSpec,
        config: TrainConfig,
        num_steps: int,
        *,
        world: Communicator = SOLO,
        laid_out_for: int | None = None,
    ) -> None: ...

    @staticmethod
    @abstractmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        """Raise if the framework does not support the configuration. Called before anything else."""

    @staticmethod
    @abstractmethod
    def sees_gpu() -> bool: ...

    @staticmethod
    @abstractmethod
    def deterministic() -> AbstractContextManager[None]:
        """Restrict the framework in the block to kernels that produce the same bits in every run, on any device."""

    @staticmethod
    @abstractmethod
    def batches(
        prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
    ) -> Batches:
        """Open a split of prepared data for the framework; `options` has `shuffle`, and may have others."""

    def share_state(self) -> None:  # noqa: B027  (nothing to do for one worker)
        """Give all workers the state of worker 0, except that each draws its own dropout."""

    @abstractmethod
    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        """Train on one batch, together with the other workers.

        Raises:
            WorkerLostError: see `rankline.training.distributed.communicator.World`.
        """

    def loss_sum(self) -> float:
        """Sum over all trained rows, of all workers, of the loss at the step in which the row was used."""
        return float(self._loss_sum)

    def added_sum(self) -> float:
        """Sum of the terms added to these losses: penalties, and the auxiliary losses of DIEN and SIM."""
        return float(self._added_sum)

    @abstractmethod
    def diverged_at(self) -> int | None:
        """Number of the first step, counted from 1, whose loss was not finite; None if all were."""

    @abstractmethod
    def num_parameters(self) -> tuple[int, int]:
        """Return the number of weights in embedding tables, and of all other weights."""

    def average(self) -> None:
        """Add the current weights to their average; does nothing without `weight_averaging`."""
        if self._average is not None:
            self._average.update()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the averaged weights for `score` in the block; does nothing without an average."""
        if self._average is not None:
            self._average.swap()
        try:
            yield
        finally:
            if self._average is not None:
                self._average.swap()

    @abstractmethod
    def score(self, inputs: Mapping[str, Any]) -> Array:
        """Return the outputs of all heads side by side: shape (N,) for a single number, else (N, sum of widths)."""

    @abstractmethod
    def array(self, tensor: Any) -> Array:
        """Convert a tensor of a batch to an array: shape (N,) for one value per row, else (N, values)."""

    @abstractmethod
    def weights(self) -> Sequence[Array]:
        """Return a copy of the weights to publish: the averaged weights if they exist."""

    @abstractmethod
    def set_weights(self, weights: Sequence[Array]) -> None:
        """Load weights returned by `weights`."""

    @abstractmethod
    def state(self) -> Mapping[str, Array]:
        """Return the state from which a run with the same config resumes exactly: weights and their average, optimizer
        state, loss scale, loss sums, and the random generators of dropout.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Load a state returned by `state`. Only worker 0 needs one: `share_state` sends it to the others."""

    @abstractmethod
    def export(self, path: Path) -> None: ...


def share_of_sample(number: Any) -> Any:
    """Return the share of the `number`-th sample in the average of the weights, so that later samples count more.

    Polynomial-decay averaging (Shamir & Zhang 2013, "Stochastic Gradient Descent for Non-smooth Optimization", section
    4): the t-th sample has the share (η + 1) / (t + η), η = 0.5.
    """
    return 1.5 / (number + 0.5)


def check_state(state: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]]) -> None:
    shapes = [
        f"{name} {np.shape(state[name])} instead of {shape}"
        for name, shape in expected.items()
        if name in state and np.shape(state[name]) != shape
    ]
    parts = {
        "lacks": sorted(expected.keys() - state.keys()),
        "has the unknown": sorted(state.keys() - expected.keys()),
        "has": shapes,
    }
    if differences := [f"it {verb} {listed(names, _SHOWN)}" for verb, names in parts.items() if names]:
        raise ArtifactError(
            f"the saved state belongs to another model: {'; '.join(differences)}. Use the configuration it was "
            "saved with, or start over."
        )
