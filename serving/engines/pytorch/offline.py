"""A TorchScript model loaded into this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankline.serving.engines.offline import PaddedModel
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.tensor_names import SCORE
from rankline.workflows.torchscript.program import input_names, load_torch_script


class Model(PaddedModel):
    """An `OfflineModel` for TorchScript, which does not declare the dtypes of its inputs."""

    def __init__(self, path: Path) -> None:
        self._model, outputs = load_torch_script(path, torch, remedy="Train again.")
        self.outputs = outputs or [SCORE]  # older files contain no output names
        self.inputs = dict.fromkeys(input_names(self._model))

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Return the dtypes written by `rankline.training.export.torchscript`."""
        return spec.model_dtypes

    def operator(self, encoded: Any) -> Any:
        """Return merlin-systems' PyTorch operator, created from a copy of the schema, which it modifies."""
        from rankline.serving.engines.merlin_operators import (  # slow import, needed by exports only
            ColumnSchema,
            Schema,
            merlin_operator,
        )

        takes = Schema(list(encoded.column_schemas.values()))
        operator = merlin_operator("pytorch", "PredictPyTorch")
        return operator(self._model, takes, Schema([ColumnSchema(SCORE, dtype=np.float32)]))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        order = [names.index(name) for name in self.inputs]
        places = sorted(range(len(self.outputs)), key=self.outputs.__getitem__)

        def call(*arrays: NDArray[Any]) -> Sequence[Any]:
            with torch.inference_mode():
                returned = self._model(*(torch.from_numpy(arrays[place]) for place in order))
            made = returned if isinstance(returned, tuple) else (returned,)
            return [made[place].numpy() for place in places]

        return call
