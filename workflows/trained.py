"""A trained model on disk, light to import: reading it needs no TensorFlow.

A trained-model artifact holds `model.savedmodel/` and a copy of the `feature_spec.yaml` that it was built from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workflows.artifacts import Manifest, load_manifest

KIND = "trained-model"
SAVED_MODEL = "model.savedmodel"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A trained model on disk.

    Attributes:
        path: the artifact.
        run_id: MLflow run that made it.
        tracking_uri: the store that has the run.
        metrics: `valid_auc`, `valid_logloss`, where users are known `valid_gauc`, and `epoch`, of the weights kept.
        manifest: what `manifest.json` says.
    """

    path: Path
    run_id: str
    tracking_uri: str
    metrics: Mapping[str, float]
    manifest: Manifest = field(repr=False)

    @property
    def saved_model(self) -> Path:
        """The SavedModel directory."""
        return self.path / SAVED_MODEL

    @classmethod
    def load(cls, path: Path) -> "TrainedModel":
        """Read and check a trained model.

        Raises:
            ArtifactError: it is not there, is something else, or is damaged.
        """
        manifest = load_manifest(path, KIND)
        details = manifest.details
        return cls(
            path=path,
            run_id=details["run_id"],
            tracking_uri=details["tracking_uri"],
            metrics=details["metrics"],
            manifest=manifest,
        )
