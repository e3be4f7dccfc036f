"""LightGBM forests, one per head, that share one feature matrix."""

from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from rankline.training.models.config import StepConfig
from rankline.training.models.lightgbm import LightGBMConfig
from rankline.training.models.matrix import FeatureMatrix
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

OBJECTIVES = {BINARY: "binary", REGRESSION: "regression", MULTICLASS: "multiclass"}


class Forests:
    """LightGBM forests, one booster per head. Boosters are created by `begin` or `load`."""

    def __init__(self, spec: FeatureSpec, model: LightGBMConfig, _: StepConfig | None = None) -> None:
        self.heads, self._model = spec.heads, model
        self.features = FeatureMatrix(spec, model.list_ids)
        self.matrix, self.width, self.row_dtype = self.features.of, self.features.width, np.float32
        self.boosters: list[lightgbm.Booster] = []

    def begin(self, rows: NDArray[np.float32], labels: NDArray[np.float32], seed: int) -> None:
        self.boosters = []
        for head, own in zip(self.heads, np.atleast_2d(labels.T), strict=True):
            has_label = ~np.isnan(own)
            data = lightgbm.Dataset(rows[has_label], own[has_label], params={"verbosity": -1})
            self.boosters.append(lightgbm.Booster(self._parameters(head, seed), data))

    def learn(self, share: float) -> None:
        """Add trees to each forest until it has the fraction `share` of its maximum number of trees, or no further
        split is found.
        """
        trees = round(share * self._model.trees)
        for booster in self.boosters:
            while booster.current_iteration() < trees and not booster.update():
                pass

    def scores(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        parts = [np.asarray(booster.predict(rows)).reshape(len(rows), -1) for booster in self.boosters]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def texts(self) -> list[str]:
        return [booster.model_to_string(num_iteration=-1) for booster in self.boosters]

    def load(self, texts: Sequence[str]) -> None:
        """Load forests from strings in LightGBM's format. Loaded forests cannot be grown further."""
        self.boosters = [lightgbm.Booster(model_str=text) for text in texts]

    def num_leaves(self) -> int:
        return sum(self._model.trees * self._model.leaves * head.width for head in self.heads)

    def _parameters(self, head: Head, seed: int) -> dict[str, Any]:
        model = self._model
        return {
            "objective": OBJECTIVES[head.task],
            "num_leaves": model.leaves,
            "learning_rate": model.shrinkage,
            "min_data_in_leaf": model.min_leaf_rows,
            "lambda_l2": model.l2_leaves,
            "feature_fraction": model.feature_share,
            "seed": seed,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        } | ({"num_class": head.width} if head.task == MULTICLASS else {})
