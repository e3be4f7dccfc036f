"""An exported ensemble on disk, light to import: serving one needs no TensorFlow in this process."""

from dataclasses import dataclass
from pathlib import Path

from workflows.artifacts import Manifest, load_manifest
from workflows.errors import ArtifactError

KIND = "ensemble"


@dataclass(frozen=True, kw_only=True)
class ExportedEnsemble:
    """An ensemble on disk; its directory is a Triton model repository."""

    path: Path
    manifest: Manifest

    @classmethod
    def load(cls, path: Path) -> "ExportedEnsemble":
        """Open an ensemble and check its files against the manifest.

        Raises:
            ArtifactError: missing or damaged.
        """
        return cls(path=path, manifest=load_manifest(path, KIND))

    def check_made_from(self, prepared: Manifest) -> None:
        """Refuse prepared data that the model was not trained on.

        Raises:
            ArtifactError: it is other data.
        """
        origin = self.manifest.made_from[prepared.kind]
        if origin != prepared.fingerprint:
            raise ArtifactError(
                f"{self.path} was exported from prepared data {origin[:12]}, this is {prepared.fingerprint[:12]}. "
                "Export again."
            )

    @property
    def name(self) -> str:
        """Name of the ensemble model."""
        return str(self.manifest.details["name"])

    @property
    def run_id(self) -> str:
        """MLflow run that trained the model."""
        return str(self.manifest.details["run_id"])

    @property
    def tracking_uri(self) -> str:
        """MLflow store of that run."""
        return str(self.manifest.details["tracking_uri"])

    @property
    def offline_metrics(self) -> dict[str, float]:
        """Metrics of the model on the validation rows, as training measured them."""
        return dict(self.manifest.details["metrics"])
