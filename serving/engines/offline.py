"""Interfaces of models that score in this process, outside Triton, and enter the serving graph."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensors import side_by_side


class ScoringModel(Protocol):
    """A model in its served format, loaded into this process.

    Args:
        path: model file or directory.

    Raises:
        ArtifactError: the model cannot be loaded.
    """

    def __init__(self, path: Path) -> None: ...

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows that were encoded by a plan, in the layout used by Triton.

        Returns:
            The values of each row, all outputs concatenated in the order of their names, (N, sum of widths); or (N,)
                for a
            single value. With several candidates per row, (N, candidates) or (N × candidates,).

        Raises:
            ArtifactError: the model takes other columns.
        """

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """Return the function that the backend calls for a request, using all cores.

        Returns:
            A function from one array per name, as created by `padded_tensors`, to the outputs in the order of their
            names.
        """


class OfflineModel(ScoringModel, Protocol):
    """A trained model in the format of its framework, loaded into this process."""

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Return column → NumPy dtype name of the model's inputs, which may differ from the workflow's outputs.

        NVTabular's hashes are int32, for instance, and its statistics mostly float64.

        Args:
            spec: features that the model was trained on.
        """

    def operator(self, encoded: Any) -> Any:
        """Return the merlin-systems operator for this model in a serving graph.

        Args:
            encoded: Merlin schema of the workflow's output.
        """

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Score rows that were encoded by NVTabular; returns the same as `score_served`.

        Raises:
            ArtifactError: the model takes other columns.
        """


def scores_of(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Convert a model's outputs by name to the result of `score_served`."""
    scores = side_by_side([outputs[name] for name in sorted(outputs)])
    return scores.reshape(-1) if scores.shape[1:] == (1,) else scores
