from collections.abc import Callable
from pathlib import Path

from rankline.registry.mlflow_registry import RegisteredVersion, Registry
from rankline.serving.export.config import ExportConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, add_version
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.storage.atomic import staging_for


def ensure_downloaded(
    registry: Registry, wanted: RegisteredVersion, path: Path, report: Callable[[str], None]
) -> ExportedEnsemble:
    """Return a registered version from a model repository, downloaded if necessary.

    Its files are verified against the manifest, and the manifest against the registry.

    Raises:
        RegistryError: the store does not respond, or lacks the files.
        ArtifactError: the version is not an ensemble, is damaged, or the repository has another version of that number.
    """
    if not wanted.fingerprint:
        raise ArtifactError(
            f"version {wanted.number} of the registered model {wanted.name!r} is no ensemble of that name. "
            "Choose one that `rankline register` made."
        )
    if found := _there(wanted, path):
        found.check_files()
        return found
    with staging_for(path.resolve()) as directory:
        report(f"fetching {wanted.words}")
        source = registry.download(wanted, directory)
        return add_version(source, path, wanted.name, fingerprint=wanted.fingerprint, keep=ExportConfig.keep_versions)


def _there(wanted: RegisteredVersion, path: Path) -> ExportedEnsemble | None:
    try:
        found = ExportedEnsemble.load(path, wanted.version)
    except ArtifactError:
        return None
    return found if found.manifest.fingerprint == wanted.fingerprint else None
