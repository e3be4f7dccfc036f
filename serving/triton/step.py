"""Parameters and checksums of a step, written by the exporter and read by the backends and clients."""

from collections.abc import Mapping
from pathlib import Path

from rankline.workflows.storage.artifacts import FileRecord, Manifest, check_files, refuse_links, refuse_unlisted

MANIFEST_PARAMETER = "MANIFEST"
"""Parameter of a step: path of its version's manifest in the model repository."""

CANDIDATES = "CANDIDATES"
"""Comma-separated names of the inputs with one value per candidate, [num_rows, num_candidates]."""

MAX_LIST_LENGTH = "MAX_LIST_LENGTH"
"""Maximum number of list values, and of candidates, in one row of a request; 0 for no limit."""

CLASSES = "CLASSES"
"""JSON of output → names of its classes in the order of their probabilities; omitted if no output has classes."""


def names_in(value: str) -> tuple[str, ...]:
    return tuple(filter(None, value.split(",")))


PLAN = "plan"
"""Directory of the workflow in a version directory, on its own or next to the model that it feeds."""

COLUMNS_FILE = "columns.json"
"""File in a workflow directory that marks a workflow run through NVTabular instead of a plan."""


def check_step(model: Path, manifest: str) -> None:
    """Verify a step's files against its version's manifest. The path `manifest` is relative to the model repository."""
    check_step_files(model, Manifest.read((model.parent / manifest).parent).files)


def check_step_files(model: Path, files: Mapping[str, FileRecord]) -> None:
    """Verify the files of one step; the manifest may also list files of other steps."""
    own = {name: record for name, record in files.items() if name.startswith(f"{model.name}/")}
    refuse_links(model, "ensemble")
    check_files(model.parent, own, "ensemble")
    refuse_unlisted(model, {name.removeprefix(f"{model.name}/") for name in own}, "ensemble")
