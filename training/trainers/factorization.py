"""Trainer of models that consist of tables only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.export import saved_model
from rankline.training.models.factorization.tables import users_and_items
from rankline.training.trainers.base import Array
from rankline.training.trainers.in_memory import KeptRowsTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec


class TablesTrainer(KeptRowsTrainer):
    """Fits a `TablesModel`, and exports its tables as a SavedModel."""

    PYFUNC = saved_model.__name__
    PACKAGES = ("tensorflow-cpu", "tensorflow")
    ROW_DTYPE = np.int32
    IN_ORDER = True

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        users_and_items(spec, config.model)  # type: ignore[arg-type]  # a TablesConfig
        KeptRowsTrainer.check(spec, config, num_workers=num_workers)

    @property
    def _row_width(self) -> int:
        width: int = self.model.width
        return width

    def _begin(self, rows: Array, labels: Array) -> None:
        self.model.begin(rows, labels[:, 0], self._config.seed)

    def _learn(self, share: float) -> None:
        self.model.learn(share)

    def num_parameters(self) -> tuple[int, int]:
        return sum(table.size for table in self.model.tables), 0

    def weights(self) -> list[Array]:
        return list(self.model.tables)

    def set_weights(self, weights: Sequence[Any]) -> None:
        self.model.tables = [np.asarray(table) for table in weights]

    def export(self, path: Path) -> None:
        saved_model.export_saved_model(self.model.keras_model(), self._spec, path)
