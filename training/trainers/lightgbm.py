"""Trainer of LightGBM forests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankline.training.config.train import TrainConfig
from rankline.training.export import onnx as onnx_model
from rankline.training.trainers.base import Array
from rankline.training.trainers.in_memory import KeptRowsTrainer
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.feature_spec import FeatureSpec


class LightGBMTrainer(KeptRowsTrainer):
    """Grows a share of the trees after each epoch. The trees do not depend on the number of threads."""

    PYFUNC = onnx_model.__name__
    PACKAGES = ("onnxruntime",)
    ROW_DTYPE = np.float32

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:
        require("onnx", feature="training 'lightgbm'", extra="lightgbm")
        KeptRowsTrainer.check(spec, config, num_workers=num_workers)

    @property
    def _row_width(self) -> int:
        return sum(block.width for block in self.model.blocks)

    def _begin(self, rows: Array, labels: Array) -> None:
        self.model.begin(rows, labels, self._config.seed)

    def _learn(self, share: float) -> None:
        self.model.boost(round(share * self._config.model.trees))  # type: ignore[attr-defined]  # a LightGBMConfig

    def num_parameters(self) -> tuple[int, int]:
        return 0, self.model.num_leaves()

    def weights(self) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in self.model.texts()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        self.model.load([bytes(text).decode() for text in weights])

    def export(self, path: Path) -> None:
        from rankline.training.models.lightgbm.onnx import to_onnx

        path.write_bytes(to_onnx(self.model).SerializeToString(deterministic=True))
