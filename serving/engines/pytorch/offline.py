"""A TorchScript model in this process."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from serving.merlin import ColumnSchema, Schema, merlin_operator
from workflows.errors import ArtifactError
from workflows.feature_spec import FeatureSpec
from workflows.lists import Padded, padded_rows, padded_tensors
from workflows.tensor_names import SCORE


class Model:
    """An `OfflineModel` that takes padded rows only."""

    def __init__(self, path: Path) -> None:
        try:
            with warnings.catch_warnings():
                # PyTorch 2.13 advises against TorchScript, which is the format that Triton's PyTorch backend reads.
                warnings.filterwarnings(
                    "ignore", message=r"`torch\.jit\.load` is deprecated", category=DeprecationWarning
                )
                self._model = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ArtifactError(f"{path} is not TorchScript that can be loaded ({reason}). Train again.") from None
        self._names = [argument.name for argument in self._model.forward.schema.arguments[1:]]

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """TorchScript does not say them; `training.torch_script` writes these."""
        return spec.model_dtypes

    def operator(self, encoded: Any) -> Any:
        """The operator writes into the schema that it gets, so it gets a copy."""
        takes = Schema(list(encoded.column_schemas.values()))
        operator = merlin_operator("pytorch", "PredictPyTorch")
        return operator(self._model, takes, Schema([ColumnSchema(SCORE, dtype=np.float32)]))

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """In the layout that is served, which is the only one."""
        return self._score(padded_rows(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """By the names of its arguments."""
        return self._score(padded_tensors(columns))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """Without a copy of the arrays."""
        order = [names.index(name) for name in self._names]

        def call(*arrays: NDArray[Any]) -> Sequence[Any]:
            with torch.inference_mode():
                return [self._model(*(torch.from_numpy(arrays[place]) for place in order)).numpy()]

        return call

    def _score(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        if set(self._names) != set(arrays):
            raise ArtifactError(
                f"the model takes {sorted(self._names)}, the workflow makes {sorted(arrays)}. They do not match."
            )
        with torch.inference_mode():
            scores = self._model(**{name: torch.from_numpy(arrays[name].copy()) for name in self._names})
        flat: NDArray[Any] = scores.numpy().reshape(-1)
        return flat
