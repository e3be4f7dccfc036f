"""Trained models outside of Triton: how each backend's enter the serving graph, and what they score in this process."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from numpy.typing import NDArray

from serving.plan import Padded
from workflows.trained import PYTORCH, TENSORFLOW, Backend


class OfflineModel(Protocol):
    """A trained model in this process.

    Args:
        path: the model, a file or a directory.

    Raises:
        ArtifactError: it cannot be loaded.
    """

    OPERATOR: type
    """The operator of merlin-systems that stands for such a model in a graph."""

    OUTPUT: str
    """What the backend calls the score."""

    PARAMETERS: Mapping[str, str]
    """For the backend."""

    def __init__(self, path: Path) -> None: ...

    def operator(self, encoded: Any) -> Any:
        """An `OPERATOR` for this model.

        Args:
            encoded: Merlin schema of the workflow's output.
        """

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Score rows that NVTabular encoded, shape (N,).

        Raises:
            ArtifactError: the model takes other columns.
        """

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows that a plan encoded, in the layout in which Triton hands them on, shape (N,).

        Raises:
            ArtifactError: the model takes other columns.
        """


_MODELS = {
    TENSORFLOW.name: ("serving.backends.tensorflow.offline", "TensorFlowModel"),
    PYTORCH.name: ("serving.backends.pytorch.offline", "PyTorchModel"),
}


def offline_model(backend: Backend, path: Path) -> OfflineModel:
    """Load a model; imports its framework.

    Raises:
        ArtifactError: it cannot be loaded.
    """
    module, name = _MODELS[backend.name]
    model: OfflineModel = getattr(import_module(module), name)(path)
    return model
