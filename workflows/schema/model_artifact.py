"""A trained model on disk, light to import: reading it needs no TensorFlow and no PyTorch.

A trained-model artifact holds the model in one file or directory, whose name is its format, and a copy of the
`feature_spec.yaml` that it was built from. Every model can be asked for padded rows: see
`rankline.workflows.schema.ragged`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.tracking_uri import found_uri
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.targets import output_names
from rankline.workflows.storage.artifacts import MANIFEST, Manifest, load_manifest

KIND = "trained-model"

SAVED_MODEL = "model.savedmodel"
"""A directory, with the signatures of `rankline.workflows.schema.tensor_names`."""

TORCH_SCRIPT = "model.pt"

ONNX = "model.onnx"

OUTPUTS = "outputs.json"
"""Text in a `TORCH_SCRIPT` file: what the model's outputs are called, in their order."""


class ModelArtifact(Protocol):
    """A model on disk that engines take, in the padded layout: trained here, or made to be like that."""

    @property
    def format(self) -> str:
        """Name of the file or directory that holds it, such as `SAVED_MODEL`."""

    @property
    def model_path(self) -> Path:
        """The file or directory."""

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Column → NumPy dtype name of the values that it takes."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What its outputs are called, in their order."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model on disk.

    Attributes:
        path: the artifact.
        format: name of the file or directory that holds the model, such as `SAVED_MODEL`: the framework that trains a
            model says which it writes, an engine of `rankline.serving.engines` which it takes.
        run_id: MLflow run that made it.
        tracking_uri: the store that has the run.
        metrics: of the weights kept: `valid_auc` and each other metric that was measured, and their `epoch`.
        manifest: what `manifest.json` says.
    """

    path: Path
    format: str
    run_id: str
    tracking_uri: str
    metrics: Mapping[str, float]
    manifest: Manifest = field(repr=False)

    @property
    def model_path(self) -> Path:
        return self.path / self.format

    @property
    def dtypes(self) -> Mapping[str, str]:
        """As its trainer fed it; reads the feature spec."""
        return FeatureSpec.read(self.path).model_dtypes

    @property
    def outputs(self) -> tuple[str, ...]:
        """Those of its heads; reads the feature spec."""
        return output_names(FeatureSpec.read(self.path).heads)

    @property
    def saved_model(self) -> Path:
        """The SavedModel directory, for those who take nothing else."""
        if self.format != SAVED_MODEL:
            raise ArtifactError(f"{self.path} holds {self.format}, expected {SAVED_MODEL}.")
        return self.model_path

    @classmethod
    def load(cls, path: Path) -> "TrainedModel":
        """Read and check a trained model."""
        manifest = load_manifest(path, KIND)
        details = manifest.details
        if missing := {"format", "run_id", "tracking_uri", "metrics"} - details.keys():
            raise ArtifactError(f"{path / MANIFEST} lacks {', '.join(sorted(missing))}. Train the model again.")
        return cls(
            path=path,
            format=details["format"],
            run_id=details["run_id"],
            tracking_uri=found_uri(details["tracking_uri"], path),
            metrics=details["metrics"],
            manifest=manifest,
        )
