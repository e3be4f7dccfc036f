"""A backend's own check that it loads what was exported: the manifest lies beside the steps in the model repository."""

from pathlib import Path

from workflows.artifacts import Manifest, check_files, refuse_links, refuse_unlisted

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
    repository = model.parent
    files = Manifest.read((repository / manifest).parent).files
    own = {name: record for name, record in files.items() if name.startswith(f"{model.name}/")}
    refuse_links(model, "ensemble")
    check_files(repository, own, "ensemble")
    refuse_unlisted(model, {name.removeprefix(f"{model.name}/") for name in own}, "ensemble")
