"""A backend's own check that it loads what was exported: the manifest lies beside the steps in the model repository."""

from collections.abc import Mapping
from pathlib import Path

from rankline.workflows.storage.artifacts import FileRecord, Manifest, check_files, refuse_links, refuse_unlisted

MANIFEST_PARAMETER = "MANIFEST"
"""Parameter of a step: path of its version's manifest in the model repository."""


def check_step(model: Path, manifest: str) -> None:
    """Compare the files of a step with the manifest of its version.

    Args:
        model: the step's folder in the model repository.
        manifest: value of `MANIFEST_PARAMETER`.

    Raises:
        ArtifactError: a file is missing, damaged or not of the export, or there is no manifest.
    """
    check_step_files(model, Manifest.read((model.parent / manifest).parent).files)


def check_step_files(model: Path, files: Mapping[str, FileRecord]) -> None:
    """Check the files of one step; the manifest may list files of other steps, too."""
    own = {name: record for name, record in files.items() if name.startswith(f"{model.name}/")}
    refuse_links(model, "ensemble")
    check_files(model.parent, own, "ensemble")
    refuse_unlisted(model, {name.removeprefix(f"{model.name}/") for name in own}, "ensemble")
