"""Verify the files that a backend loads against the manifest in the model repository."""

from collections.abc import Mapping
from pathlib import Path

from rankline.workflows.storage.artifacts import FileRecord, Manifest, check_files, refuse_links, refuse_unlisted

MANIFEST_PARAMETER = "MANIFEST"
"""Parameter of a step: path of its version's manifest in the model repository."""


def check_step(model: Path, manifest: str) -> None:
    """Verify the files of a step against the manifest of its version.

    Args:
        model: folder of the step in the model repository.
        manifest: value of `MANIFEST_PARAMETER`.

    Raises:
        ArtifactError: a file is missing, damaged or not in the manifest, or the manifest is missing.
    """
    check_step_files(model, Manifest.read((model.parent / manifest).parent).files)


def check_step_files(model: Path, files: Mapping[str, FileRecord]) -> None:
    """Verify the files of one step; the manifest may also list files of other steps."""
    own = {name: record for name, record in files.items() if name.startswith(f"{model.name}/")}
    refuse_links(model, "ensemble")
    check_files(model.parent, own, "ensemble")
    refuse_unlisted(model, {name.removeprefix(f"{model.name}/") for name in own}, "ensemble")
