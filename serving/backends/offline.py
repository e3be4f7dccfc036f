"""Models outside of Triton: how they enter the serving graph, and what they score in this process."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from numpy.typing import NDArray

from serving.plan import Padded
from workflows.feature_spec import FeatureSpec
from workflows.trained import ONNX, PYTORCH, TENSORFLOW, Backend


class ScoringModel(Protocol):
    """A model in this process, in the form in which it is served.

    Args:
        path: the model, a file or a directory.

    Raises:
        ArtifactError: it cannot be loaded.
    """

    OUTPUT: str
    """What the backend calls the score."""

    PARAMETERS: Mapping[str, str]
    """For the backend."""

    def __init__(self, path: Path) -> None: ...

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows that a plan encoded, in the layout in which Triton hands them on.

        Returns:
            Shape (N,); of rows with several candidates (N × candidates,), those of a row one after another.

        Raises:
            ArtifactError: the model takes other columns.
        """

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """The function that the backend calls for a request, on all cores.

        Args:
            names: inputs of the model.

        Returns:
            A function from one array per name, as `padded_inputs` makes them, to the scores as the only output.
        """


class OfflineModel(ScoringModel, Protocol):
    """A trained model in this process."""

    OPERATOR: type
    """The operator of merlin-systems that stands for such a model in a graph."""

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:
        """Column → NumPy dtype name of the values that the model takes, whatever an operator of a workflow makes.

        NVTabular's hashes are int32, for instance, and its statistics mostly float64.

        Args:
            spec: of the rows that it was trained on.
        """

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


_MODELS = {
    TENSORFLOW.name: ("serving.backends.tensorflow.offline", "TensorFlowModel"),
    PYTORCH.name: ("serving.backends.pytorch.offline", "PyTorchModel"),
    ONNX.name: ("serving.backends.onnxruntime.offline", "OnnxModel"),
}


def offline_model(backend: Backend, path: Path) -> OfflineModel:
    """Load a model as it was trained; imports its framework.

    Raises:
        ArtifactError: it cannot be loaded.
    """
    model: OfflineModel = _load(backend, path)
    return model


def scoring_model(backend: Backend, path: Path) -> ScoringModel:
    """Load a model as it is served, converted perhaps; imports what runs it.

    Raises:
        ArtifactError: it cannot be loaded.
    """
    model: ScoringModel = _load(backend, path)
    return model


def _load(backend: Backend, path: Path) -> Any:
    module, name = _MODELS[backend.name]
    return getattr(import_module(module), name)(path)
