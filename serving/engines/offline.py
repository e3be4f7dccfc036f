"""Models outside of Triton: what they score in this process, and how a trained one enters the serving graph."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensors import side_by_side


class ScoringModel(Protocol):
    """A model in this process, in the form in which it is served.

    Args:
        path: the model, a file or a directory.

    Raises:
        ArtifactError: it cannot be loaded.
    """

    def __init__(self, path: Path) -> None: ...

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows that a plan encoded, in the layout in which Triton hands them on.

        Returns:
            The values of each row, all outputs side by side in the order of their names, (N, sum of widths); or (N,)
            where that is one value. With several candidates per row, (N, candidates) or (N × candidates,).

        Raises:
            ArtifactError: the model takes other columns.
        """

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """The function that the backend calls for a request, on all cores.

        Args:
            names: inputs of the model.

        Returns:
            A function from one array per name, as `padded_tensors` makes them, to the outputs in the order of
            their names.
        """


class OfflineModel(ScoringModel, Protocol):
    """A trained model in this process, in the format that its framework wrote."""

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Column → NumPy dtype name of the values that the model takes, whatever an operator of a workflow makes.

        NVTabular's hashes are int32, for instance, and its statistics mostly float64.

        Args:
            spec: of the rows that it was trained on.
        """

    def operator(self, encoded: Any) -> Any:
        """The operator of merlin-systems that stands for this model in a serving graph.

        Args:
            encoded: Merlin schema of the workflow's output.
        """

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Score rows that NVTabular encoded; as `score_served`.

        Raises:
            ArtifactError: the model takes other columns.
        """


def scores_of(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """What `score_served` gives, from the outputs of a model by name."""
    scores = side_by_side([outputs[name] for name in sorted(outputs)])
    return scores.reshape(-1) if scores.shape[1:] == (1,) else scores
