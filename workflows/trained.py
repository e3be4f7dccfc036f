"""A trained model on disk, light to import: reading it needs no TensorFlow and no PyTorch.

A trained-model artifact holds the model in the file or directory that its backend looks for, and a copy of the
`feature_spec.yaml` that it was built from. Every model can be asked for padded rows: see `padded_rows`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workflows.artifacts import Manifest, load_manifest
from workflows.errors import ArtifactError
from workflows.tensor_names import NNZS, VALUES

KIND = "trained-model"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What runs the models of one framework.

    Attributes:
        name: what Triton calls it.
        file_name: of the model in its artifact, and in a model repository, where Triton expects it.
        platform: what Triton calls the model's format.
        threads_parameter: what a model's config calls the number of threads that one operation may use.
        module: Python module of the framework.
        extra: extra in pyproject.toml that brings it.
    """

    name: str
    file_name: str
    platform: str
    threads_parameter: str
    module: str
    extra: str


TENSORFLOW = Backend(
    name="tensorflow",
    file_name="model.savedmodel",
    platform="tensorflow_savedmodel",
    threads_parameter="INTRA_OP_THREADS",
    module="tensorflow",
    extra="cpu",
)
PYTORCH = Backend(
    name="pytorch",
    file_name="model.pt",
    platform="pytorch_libtorch",
    threads_parameter="INTRA_OP_THREAD_COUNT",
    module="torch",
    extra="torch",
)
ONNX = Backend(
    name="onnxruntime",
    file_name="model.onnx",
    platform="onnxruntime_onnx",
    threads_parameter="intra_op_thread_count",
    module="onnxruntime",
    extra="onnx",
)
"""Nothing is trained by it: models of the others are converted to it when they are exported."""

SERVING = (TENSORFLOW, PYTORCH, ONNX)
"""Those that run models in Triton."""

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (TENSORFLOW, PYTORCH)}
"""Those that train."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model on disk.

    Attributes:
        path: the artifact.
        backend: what runs it.
        run_id: MLflow run that made it.
        tracking_uri: the store that has the run.
        metrics: of the weights kept: `valid_auc` and each other metric that was measured, and their `epoch`.
        manifest: what `manifest.json` says.
    """

    path: Path
    backend: Backend
    run_id: str
    tracking_uri: str
    metrics: Mapping[str, float]
    manifest: Manifest = field(repr=False)

    @property
    def model_path(self) -> Path:
        """The model itself: a SavedModel directory or a TorchScript file."""
        return self.path / self.backend.file_name

    @property
    def saved_model(self) -> Path:
        """The SavedModel directory, for those who take nothing else.

        Raises:
            ArtifactError: it is a model of another framework.
        """
        if self.backend != TENSORFLOW:
            raise ArtifactError(f"{self.path} holds {self.backend.file_name}, expected {TENSORFLOW.file_name}.")
        return self.model_path

    @classmethod
    def load(cls, path: Path) -> "TrainedModel":
        """Read and check a trained model.

        Raises:
            ArtifactError: it is not there, is something else, or is damaged.
        """
        manifest = load_manifest(path, KIND)
        details = manifest.details
        backend = details.get("backend", TENSORFLOW.name)  # version 0.1.0 knew no other
        if backend not in BACKENDS:
            raise ArtifactError(f"{path} is for the backend {backend!r}. Available: {', '.join(BACKENDS)}.")
        return cls(
            path=path,
            backend=BACKENDS[backend],
            run_id=details["run_id"],
            tracking_uri=details["tracking_uri"],
            metrics=details["metrics"],
            manifest=manifest,
        )


def padded_rows(frame: Any) -> dict[str, npt.NDArray[Any]]:
    """Encoded rows in the layout in which every trained model takes them.

    Args:
        frame: pandas DataFrame; a column of lists has the dtype `object`.

    Returns:
        `name` of shape (N, 1) for a single column. For lists `name__values` (N, W), zeros behind the end of each list,
        and `name__nnzs` int32 (N, 1).
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in frame.columns:
        if frame[name].dtype != object:
            arrays[name] = frame[name].to_numpy()[:, None]
            continue
        lists = list(frame[name])
        nnzs = np.fromiter(map(len, lists), np.int32, len(lists))
        filled = [values for values in lists if len(values)]  # an empty Python list would make the others float
        values = np.concatenate(filled) if filled else np.zeros(0, np.int64)
        padded = np.zeros((len(lists), nnzs.max(initial=0)), values.dtype)
        padded[np.arange(padded.shape[1]) < nnzs[:, None]] = values
        arrays |= {name + VALUES: padded, name + NNZS: nnzs[:, None]}
    return arrays
