"""Trained models on disk. Reading one imports neither TensorFlow nor PyTorch.

A trained-model artifact contains the model as one file or directory, named after its format, and a copy of the
`feature_spec.yaml` that it was built from. Every model accepts padded rows: see `rankline.workflows.schema.ragged`.
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
"""Name of the text inside a `TORCH_SCRIPT` file that lists the model's outputs in order."""


class ModelArtifact(Protocol):
    """A model on disk that engines can serve, either trained by Rankline or converted to the padded layout."""

    @property
    def format(self) -> str:
        """Name of the model's file or directory, such as `SAVED_MODEL`."""

    @property
    def model_path(self) -> Path:
        pass

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The NumPy dtype name of each input column."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs, in order."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model on disk."""

    path: Path  # directory of the artifact
    format: str  # name of the model's file or directory, such as `SAVED_MODEL`; an engine declares those it serves
    run_id: str  # MLflow run that trained the model
    tracking_uri: str  # the MLflow store that contains the run
    metrics: Mapping[str, float]  # of the saved weights: `valid_auc`, any other that was measured, and their `epoch`
    manifest: Manifest = field(repr=False)  # contents of `manifest.json`

    @property
    def model_path(self) -> Path:
        return self.path / self.format

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The NumPy dtype name of each input feature, read from the feature spec."""
        return FeatureSpec.read(self.path).model_dtypes

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the model's outputs, read from the feature spec."""
        return output_names(FeatureSpec.read(self.path).heads)

    @property
    def saved_model(self) -> Path:
        """The SavedModel directory, for callers that support no other format."""
        if self.format != SAVED_MODEL:
            raise ArtifactError(f"{self.path} contains {self.format}, expected {SAVED_MODEL}.")
        return self.model_path

    def _repr_html_(self) -> str:
        from rankline.workflows.page.page import Page, embedded, metric_tiles  # only notebooks need it

        page = Page(
            title=f"{self.manifest.details.get('config', {}).get('model', 'model')}, trained",
            meta=[str(self.path), *[f"run {self.run_id[:8]}"] * bool(self.run_id), self.format],
            tiles=metric_tiles(self.metrics),
        )
        return embedded(page)

    @classmethod
    def load(cls, path: Path) -> "TrainedModel":
        manifest = load_manifest(path, KIND)
        if missing := {"format", "run_id", "tracking_uri", "metrics"} - manifest.details.keys():
            raise ArtifactError(f"{path / MANIFEST} lacks {', '.join(sorted(missing))}. Train the model again.")
        return cls.described(path, manifest)

    @classmethod
    def described(cls, path: Path, manifest: Manifest) -> "TrainedModel":
        """Return the model that a manifest describes without reading its files, which may be on another machine."""
        details = manifest.details
        return cls(
            path=path,
            format=details["format"],
            run_id=details["run_id"],
            tracking_uri=found_uri(details["tracking_uri"], path),
            metrics=details["metrics"],
            manifest=manifest,
        )
