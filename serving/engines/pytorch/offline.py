"""A TorchScript model loaded into this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from rankline.serving.engines.offline import scores_of
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded, padded_rows, padded_tensors
from rankline.workflows.schema.tensor_names import SCORE
from rankline.workflows.torchscript.program import input_names, load_torch_script


class Model:
    """An `OfflineModel` that accepts padded rows only."""

    def __init__(self, path: Path) -> None:
        self._model, outputs = load_torch_script(path, torch, remedy="Train again.")
        self._outputs = outputs or [SCORE]  # older files contain no output names
        self._names = input_names(self._model)

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Return the dtypes written by `rankline.training.export.torchscript`; TorchScript does not declare them."""
        return spec.model_dtypes

    def operator(self, encoded: Any) -> Any:
        """Return the operator for a copy of the schema, since the operator modifies it."""
        from rankline.serving.engines.merlin_operators import (  # slow import, needed by exports only
            ColumnSchema,
            Schema,
            merlin_operator,
        )

        takes = Schema(list(encoded.column_schemas.values()))
        operator = merlin_operator("pytorch", "PredictPyTorch")
        return operator(self._model, takes, Schema([ColumnSchema(SCORE, dtype=np.float32)]))

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        return self._score(padded_rows(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        return self._score(padded_tensors(columns))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        order = [names.index(name) for name in self._names]
        places = sorted(range(len(self._outputs)), key=self._outputs.__getitem__)

        def call(*arrays: NDArray[Any]) -> Sequence[Any]:
            with torch.inference_mode():
                made = self._arrays(self._model(*(torch.from_numpy(arrays[place]) for place in order)))
            return [made[place] for place in places]

        return call

    def _score(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if set(self._names) != set(arrays):
            raise ArtifactError(
                f"the model takes {sorted(self._names)}, the workflow makes {sorted(arrays)}. They do not match."
            )
        with torch.inference_mode():
            outputs = self._arrays(self._model(*(torch.from_numpy(_copy(arrays[name])) for name in self._names)))
        return scores_of(dict(zip(self._outputs, outputs, strict=True)))

    def _arrays(self, returned: Any) -> list[NDArray[Any]]:
        return [tensor.numpy() for tensor in (returned if isinstance(returned, tuple) else (returned,))]


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array, with numbers as float32 regardless of the workflow's output."""
    return array.astype(np.float32 if array.dtype.kind == "f" else array.dtype)
