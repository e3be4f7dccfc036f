"""Base class of trainers that need all rows at once."""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.arrays import ArrayLoader
from rankline.training.data.loader.files import ParquetFiles
from rankline.training.data.loader.stream import StreamOptions
from rankline.training.data.open_split import check_parquet, parquet_split
from rankline.training.distributed.communicator import SOLO, World
from rankline.training.evaluation import losses_of
from rankline.training.trainers.base import Array, Trainer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import FeatureSpec


class KeptRowsTrainer(Trainer):
    """Keeps the rows of the first epoch in memory, and fits a further share of the model after each epoch.

    The same rows in the same order give the same model, so the saved state consists of the rows. The loss of an epoch
    is computed on all rows at its end.
    """

    ROW_DTYPE: type
    """Type of the rows in memory."""
    IN_ORDER = False
    """Whether to read rows in the order of the files, for models that depend on it."""

    _average = None

    def __init__(
        self,
        spec: FeatureSpec,
        config: TrainConfig,
        num_steps: int,
        *,
        world: World = SOLO,  # noqa: ARG002  (a trainer's signature; `check` requires one worker)
        laid_out_for: int | None = None,  # noqa: ARG002
    ) -> None:
        self._spec, self._config = spec, config
        self.model: Any = config.model.build(spec, config)
        self._steps_per_epoch = max(1, num_steps // config.epochs)
        self._rows: list[Array] = []
        self._labels: list[Array] = []
        self._step, self._epochs_learned, self._total_loss = 0, 0, 0.0

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        name = config.model.name
        if num_workers > 1:
            raise ConfigError(f"{name} trains on one worker, got {num_workers} workers. Train it with one.")
        if config.xla or config.precision != "float32":
            raise ConfigError(f"xla and precision are of neural networks, and {name} is none. Leave them out.")
        check_parquet(spec, reader=name)

    @staticmethod
    def sees_gpu() -> bool:
        return False

    @staticmethod
    def deterministic() -> AbstractContextManager[None]:
        return nullcontext()

    @classmethod
    def batches(
        cls,
        prepared: Path,
        spec: FeatureSpec,
        split: str,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        size: int = 1,
    ) -> ArrayLoader:
        def make(files: ParquetFiles, options: StreamOptions) -> ArrayLoader:
            return ArrayLoader(files, spec, batch_size, options)

        shuffle = shuffle and not cls.IN_ORDER
        return parquet_split(make, prepared, spec, split, shuffle=shuffle, seed=seed, rank=rank, size=size)

    @property
    @abstractmethod
    def _row_width(self) -> int:
        """Columns per row in memory."""

    @abstractmethod
    def _begin(self, rows: Array, labels: Array) -> None:
        """Start fitting all rows, with labels (N, heads)."""

    @abstractmethod
    def _learn(self, share: float) -> None:
        """Continue until this share of the model, in (0, 1], is fitted."""

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        if self._step < self._steps_per_epoch:
            self._rows.append(self.model.matrix(inputs))
            self._labels.append(labels.reshape(len(labels), -1))
        self._step += 1
        if self._step % self._steps_per_epoch == 0:
            self._learn_epoch()
            rows, labels = self._rows[0], self._labels[0]
            scores = self.array(self.model.scores(rows))
            self._total_loss += len(rows) * losses_of(self._spec.heads, self.array(labels), scores)

    def _learn_epoch(self) -> None:
        if not self._epochs_learned:
            self._rows, self._labels = [np.concatenate(self._rows)], [np.concatenate(self._labels)]
            self._begin(self._rows[0], self._labels[0])
        self._epochs_learned += 1
        self._learn(self._epochs_learned / self._config.epochs)

    def loss_sum(self) -> float:
        return self._total_loss

    def added_sum(self) -> float:
        return 0.0

    def diverged_at(self) -> int | None:
        return None

    def score(self, inputs: Mapping[str, Any]) -> Array:
        return self.array(self.model.scores(self.model.matrix(inputs)))

    def array(self, tensor: Any) -> Array:
        array: Array = tensor
        return array[:, 0] if array.ndim > 1 and array.shape[1] == 1 else array

    def state(self) -> dict[str, Array]:
        rows = np.concatenate([np.empty((0, self._row_width), self.ROW_DTYPE), *self._rows])
        labels = np.concatenate([np.empty((0, len(self._spec.heads)), np.float32), *self._labels])
        progress = {"step": np.array(self._step), "loss": np.array(self._total_loss)}
        return {"rows": rows, "labels": labels} | progress

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rows, self._labels = [np.array(state["rows"])], [np.array(state["labels"])]
        self._step, self._total_loss = int(state["step"]), float(state["loss"])
        for _ in range(self._step // self._steps_per_epoch):
            self._learn_epoch()
