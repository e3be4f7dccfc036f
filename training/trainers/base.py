"""The interface between a training run and a framework."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    from rankline.workflows.preprocess.prepared_data import PreparedData
_SHOWN = 3


class Batches(Protocol):
    """The batches of a split. Each iteration over them is one epoch."""

    @property
    def num_rows(self) -> int:
        """The number of rows per epoch."""

    def __len__(self) -> int:
        """Return the number of batches per epoch."""

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield each batch as framework tensors: a dict of inputs by name, and the labels with one column per label."""


class Trainer(ABC):
    """Base class for trainers, each of which trains models with one framework."""

    PYFUNC: str
    """Module with which MLflow loads the exported model."""

    PACKAGES: tuple[str, ...]
    """Distributions that the exported model needs; those that are not installed are ignored."""

    _average: Any
    """Running average of the weights, with `update`, and `swap` to exchange both; None for none."""
    _loss_sum: Any
    _added_sum: Any

    say: Callable[[str, float], None] = staticmethod(lambda _, __: None)
    """Shows what a step that takes long is doing, and which share of the epoch is done. Set by the training loop."""
    data: "PreparedData"
    """The data to learn from. Set before the first step."""

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
        """Return a context manager that restricts the framework to deterministic kernels, so that repeated runs are
        bit-identical on any device.
        """

    @staticmethod
    @abstractmethod
    def batches(
        prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
    ) -> Batches:
        """Open a split of prepared data for the framework. `options` must include `shuffle`."""

    def share_state(self) -> None:  # noqa: B027  (nothing to do for one worker)
        """Copy worker 0's state to all workers, but give each worker its own random stream for dropout."""

    @abstractmethod
    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        """Train on one batch, together with the other workers.

        Raises:
            WorkerLostError: see `rankline.training.distributed.communicator.Communicator`.
        """

    def loss_sum(self) -> float:
        """Return the cumulative training loss over the rows of all workers. Each row contributes the loss computed in
        its training step.
        """
        return float(self._loss_sum)

    def added_sum(self) -> float:
        """Return the cumulative sum of the extra loss terms: penalties, and the auxiliary losses of DIEN and SIM."""
        return float(self._added_sum)

    @abstractmethod
    def diverged_at(self) -> int | None:
        """Return the 1-based number of the first step with a non-finite loss, or None if all losses were finite."""

    @abstractmethod
    def num_parameters(self) -> tuple[int, int]:
        """Return the number of weights in embedding tables and the number of all other weights."""

    def average(self) -> None:
        """Add the current weights to their running average if `weight_averaging` is set."""
        if self._average is not None:
            self._average.update()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Make `score` use the averaged weights, if available, within the block."""
        if self._average is not None:
            self._average.swap()
        try:
            yield
        finally:
            if self._average is not None:
                self._average.swap()

    @abstractmethod
    def score(self, inputs: Mapping[str, Any]) -> Array:
        """Return the concatenated outputs of all heads: (N,) for a single output, otherwise (N, sum of widths)."""

    @abstractmethod
    def array(self, tensor: Any) -> Array:
        """Convert a batch tensor to an array of shape (N,) if it has one value per row, else (N, values per row)."""

    @abstractmethod
    def weights(self) -> Sequence[Array]:
        """Return a copy of the weights to publish: the averaged weights if available, else the current ones."""

    @abstractmethod
    def set_weights(self, weights: Sequence[Array]) -> None:
        """Load weights returned by `weights`."""

    @abstractmethod
    def state(self) -> Mapping[str, Array]:
        """Return the state from which a run with the same config resumes exactly: weights and their average, optimizer
        state, loss scale, loss sums, and dropout generators.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Load a state returned by `state`. Workers other than 0 may pass an empty one; `share_state` fills it."""

    @abstractmethod
    def export(self, path: Path) -> None: ...

    def findings(self) -> Mapping[str, Any]:
        """Return the models that were compared, the metric and the reason for the choice; empty if none were."""
        return {}


def share_of_sample(number: Any) -> Any:
    """Return the coefficient of sample `number` in the running average of the weights, which favors later samples.

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
