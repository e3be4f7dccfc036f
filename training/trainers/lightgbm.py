"""Fitting forests of LightGBM: see `training.trainers.base.Trainer`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from training import onnx_model
from training.config import TrainConfig
from training.loader.arrays import ArrayLoader
from training.loader.splits import check_parquet, checks_of, encoding, parquet_files
from training.loader.stream import StreamOptions
from training.metrics import losses_of
from training.models.lightgbm.network import Forests
from training.trainers.base import Array, Trainer
from training.world import SOLO, World
from workflows.errors import ConfigError, DataError
from workflows.extras import require
from workflows.feature_spec import FeatureSpec


class LightGBMTrainer(Trainer):
    """Keeps the rows of the first epoch, and grows a share of the trees after each.

    The same rows in the same order give the same trees, whatever the number of threads, so that a state is the rows.
    The loss of an epoch is that of its rows after it.
    """

    PYFUNC = onnx_model.__name__
    PACKAGES = ("onnxruntime",)
    _average = None

    def __init__(
        self,
        spec: FeatureSpec,
        config: TrainConfig,
        num_steps: int,
        *,
        world: World = SOLO,  # noqa: ARG002  (a fit's signature; `check` takes one worker only)
        laid_out_for: int | None = None,  # noqa: ARG002
    ) -> None:
        self._spec, self._config = spec, config
        self._trees = config.model.trees  # type: ignore[attr-defined]  # a LightGBMConfig
        self.model: Forests = config.model.build(spec, config)
        self._steps_per_epoch = max(1, num_steps // config.epochs)
        self._rows: list[Array] = []
        self._labels: list[Array] = []
        self._step, self._total_loss = 0, 0.0

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1, splits_tables: bool = False) -> None:
        require("onnx", feature="training 'lightgbm'", extra="lightgbm")
        if num_workers > 1 or splits_tables:
            raise ConfigError(f"lightgbm trains on one worker, got {num_workers}, and has no tables to split.")
        if config.xla or config.precision != "float32":
            raise ConfigError("xla and precision are of neural networks, and lightgbm is none. Leave them out.")
        check_parquet(spec, reader="lightgbm")

    @staticmethod
    def sees_gpu() -> bool:
        return False

    @staticmethod
    def deterministic() -> AbstractContextManager[None]:
        return nullcontext()

    @staticmethod
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
    ) -> ArrayLoader:
        share: StreamOptions = {"global_rank": rank, "global_size": size}
        options: StreamOptions = {**checks_of(spec), **share, "shuffle": shuffle, "seed": seed}
        files = parquet_files(prepared, spec.source(split))
        loader = encoding(ArrayLoader(files, spec, batch_size, options), prepared, spec)
        if not loader.num_rows:
            raise DataError(f"the {split} data in {prepared} has no rows. Prepare it from more data.")
        return loader

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        if self._step < self._steps_per_epoch:
            self._rows.append(self.model.matrix(inputs))
            self._labels.append(labels.reshape(len(labels), -1))
        self._step += 1
        if self._step % self._steps_per_epoch == 0:
            self._grow()
            labels, scores = self.array(self._labels[0]), self.array(self.model.scores(self._rows[0]))
            self._total_loss += len(labels) * losses_of(self._spec.heads, labels, scores)

    def _grow(self) -> None:
        """Have the trees of the epochs that are done."""
        if not self.model.boosters:
            self._rows, self._labels = [np.concatenate(self._rows)], [np.concatenate(self._labels)]
            self.model.begin(self._rows[0], self._labels[0], self._config.seed)
        self.model.boost(round(self._trees * self._step / (self._steps_per_epoch * self._config.epochs)))

    def loss_sum(self) -> float:
        return self._total_loss

    def added_sum(self) -> float:
        return 0.0

    def diverged_at(self) -> int | None:
        return None

    def num_parameters(self) -> tuple[int, int]:
        return 0, self.model.num_leaves()

    def score(self, inputs: Mapping[str, Any]) -> Array:
        return self.array(self.model.scores(self.model.matrix(inputs)))

    def array(self, tensor: Any) -> Array:
        array: Array = tensor
        return array[:, 0] if array.ndim > 1 and array.shape[1] == 1 else array

    def weights(self) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in self.model.texts()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        self.model.load([bytes(text).decode() for text in weights])

    def state(self) -> dict[str, Array]:
        width = sum(block.width for block in self.model.blocks)
        rows = np.concatenate([np.empty((0, width), np.float32), *self._rows])
        labels = np.concatenate([np.empty((0, len(self._spec.heads)), np.float32), *self._labels])
        progress = {"step": np.array(self._step), "loss": np.array(self._total_loss)}
        return {"rows": rows, "labels": labels} | progress

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rows, self._labels = [np.array(state["rows"])], [np.array(state["labels"])]
        self._step, self._total_loss = int(state["step"]), float(state["loss"])
        for epoch in range(1, self._step // self._steps_per_epoch + 1):
            step, self._step = self._step, epoch * self._steps_per_epoch
            self._grow()
            self._step = step

    def export(self, path: Path) -> None:
        from training.models.lightgbm.onnx import to_onnx

        path.write_bytes(to_onnx(self.model).SerializeToString(deterministic=True))
