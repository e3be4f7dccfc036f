"""Tracking URIs of MLflow stores, whether in files or on a server. Importing this module does not import MLflow."""

import os
import re
from pathlib import Path

from rankline.workflows.core.errors import ConfigError

VARIABLE = "MLFLOW_TRACKING_URI"
STORE = "mlflow.db"
_SQLITE = "sqlite:///"
# MLflow cannot open paths that contain either: it decodes percent escapes and cuts the path at a question mark.
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|\?")
_USER = re.compile(r"(?<=://)[^/?#\s'\"]*@")
_PASSWORD = re.compile(r"(?<=[?&])(?:user|username|password|passwd|pwd|token)=[^&\s'\"]*&?", re.IGNORECASE)


def uri_of_file(file: Path) -> str:
    """Return the tracking URI for a store in `file`.

    Raises:
        ConfigError: MLflow cannot open a store at this path.
    """
    path = str(file.resolve())
    if found := _UNUSABLE.search(path):
        raise ConfigError(
            f"the path of MLflow's store, {path}, contains {found[0]!r}, which MLflow does not support. Rename the "
            "directory, or pass another one with --work-dir."
        )
    return f"{_SQLITE}{path}"


def file_of(uri: str) -> Path | None:
    """Return the path of a file store, or None if the URI refers to a server."""
    _, is_file, path = uri.partition("?")[0].partition(_SQLITE)
    return Path(path) if is_file else None


def without_credentials(text: str) -> str:
    return _PASSWORD.sub("", _USER.sub("", text))


def with_credentials(uri: str) -> str:
    """Add credentials from `MLFLOW_TRACKING_URI` if it is the same store. URIs in artifacts and messages omit them."""
    given = os.environ.get(VARIABLE, "")
    return given if without_credentials(given) == uri else uri


def kept_uri(uri: str, directory: Path) -> str:
    """Return the tracking URI to save in an artifact, with a file store's path relative to the artifact's directory.

    The artifact then still finds its project's store after the project was moved or copied.
    """
    file = file_of(uri)
    if file is None:
        return without_credentials(uri)
    return f"{_SQLITE}{os.path.relpath(file.resolve(), directory.resolve())}"


def found_uri(kept: str, directory: Path) -> str:
    """Resolve the tracking URI saved in an artifact.

    Earlier versions saved an absolute path. If a directory above the artifact contains a store with the same directory
    and file name, that store is the project's own and is used instead.
    """
    file = file_of(kept)
    if file is None:
        return without_credentials(kept)
    directory = directory.resolve()
    if file.is_absolute():
        at_hand = (above / file.parent.name / file.name for above in (directory, *directory.parents))
        file = next((store for store in at_hand if store.is_file()), file)
    return f"{_SQLITE}{os.path.normpath(directory / file)}"
