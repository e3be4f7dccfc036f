"""Interfaces for scoring models in this process, outside Triton, and for exporting them to the serving graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded, padded_rows, padded_tensors
from rankline.workflows.schema.tensors import concat_outputs


class ScoringModel(Protocol):
    """A model in its served format, loaded into this process.

    Raises:
        ArtifactError: the model cannot be loaded.
    """

    def __init__(self, path: Path) -> None: ...

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows that were encoded by a plan, in the layout used by Triton.

        Returns:
            The values of each row, all outputs concatenated in the order of their names, (N, sum of widths); or (N,)
                for a single value. With several candidates per row, (N, candidates) or (N × candidates,).

        Raises:
            ArtifactError: the model takes other columns.
        """

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """Return the function with which the backend scores a request, using all cores.

        It takes one array per name, as created by `padded_tensors`, and returns outputs in the order of their names.
        """


class OfflineModel(ScoringModel, Protocol):
    """A trained model in the format of its framework, loaded into this process."""

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Map each input column of the model to its NumPy dtype name, which may differ from the workflow's output.

        NVTabular's hashes are int32, for instance, and its statistics mostly float64.
        """

    def operator(self, encoded: Any) -> Any:
        """Return the merlin-systems operator for this model, given the Merlin schema of the workflow's output."""

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Score rows that were encoded by NVTabular, with the same results and errors as `score_served`."""


class PaddedModel(ABC):
    """Base class for implementations of `OfflineModel` that accept only padded rows.

    Attributes:
        inputs: input → NumPy dtype; None for float32 instead of other floats.
        outputs: names of the outputs.
    """

    inputs: Mapping[str, Any]
    outputs: Sequence[str]

    @abstractmethod
    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """Return the scoring function; see `ScoringModel.served_call`."""

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        return self._score(padded_rows(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        return self._score(padded_tensors(columns))

    def _score(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Cast the arrays to the dtypes of the model's inputs, such as int32 or int64, and score them."""
        if set(self.inputs) != set(arrays):
            raise ArtifactError(
                f"the model expects the inputs {sorted(self.inputs)}, but the workflow produces {sorted(arrays)}."
            )
        cast = []
        for name, dtype in self.inputs.items():
            kept = np.float32 if arrays[name].dtype.kind == "f" else arrays[name].dtype
            cast.append(arrays[name].astype(kept if dtype is None else dtype))
        return scores_of(dict(zip(sorted(self.outputs), self.served_call(list(self.inputs))(*cast), strict=True)))


def scores_of(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the outputs of a model, given by name, in the layout that `score_served` returns."""
    scores = concat_outputs([outputs[name] for name in sorted(outputs)])
    return scores.reshape(-1) if scores.shape[1:] == (1,) else scores
