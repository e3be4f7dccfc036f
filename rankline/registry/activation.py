"""Keeps an ensemble's active version and the alias of its registered model in sync.

An ensemble belongs to a registry once one of its versions is registered. A small file in its model repository holds the
registry's URI. From then on, each version is registered before it becomes active, and the alias moves last. Importing
this module does not import MLflow, and commands need MLflow only if that file exists.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import REGISTRY, ExportedEnsemble
from rankline.terminal.console import note
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.core.tracking_uri import found_uri, kept_uri
from rankline.workflows.storage.artifacts import write_whole

if TYPE_CHECKING:
    from rankline.registry.mlflow_registry import RegisteredVersion, Registry


def registry_uri(path: Path) -> str | None:
    """Return the tracking URI of the ensemble's registry, or None if no version has been registered yet."""
    file = path / REGISTRY
    try:
        return found_uri(str(json.loads(file.read_text(encoding="utf-8"))["tracking_uri"]), path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{file} cannot be read. Remove the file and register the version again.") from None


def keep_registry_uri(path: Path, uri: str) -> None:
    if registry_uri(path) != uri:
        write_whole(path / REGISTRY, (json.dumps({"tracking_uri": kept_uri(uri, path)}) + "\n").encode())


def register(ensemble: ExportedEnsemble, uri: str) -> "RegisteredVersion":
    """Register a version with the alias champion if it is active, or candidate otherwise."""
    registry = _open(uri)
    registered = _registered(registry, ensemble)
    keep_registry_uri(ensemble.path, uri)
    if ensemble.is_active:
        registry.move(CHAMPION, registered)
    return registered


def make_active(ensemble: ExportedEnsemble, *, in_place_of: int | None = None, is_urgent: bool = False) -> None:
    """Activate a version, and make it the champion if its ensemble belongs to a registry.

    If the version cannot be registered, nothing changes.

    Args:
        in_place_of: the version that must still be active; None for any.
        is_urgent: if the registry does not respond, activate the version anyway, and warn that the alias stays.
    """
    uri = registry_uri(ensemble.path)
    if uri is None:
        ensemble.activate(in_place_of=in_place_of)
        return
    from rankline.registry.mlflow_registry import RegistryError

    try:
        registry = _open(uri)
        registered = _registered(registry, ensemble)
    except ArtifactError as error:
        if not is_urgent or not isinstance(error, RegistryError):
            active = ExportedEnsemble.load(ensemble.path).version
            raise type(error)(f"{error} Version {active} stays active.") from None
        ensemble.activate(in_place_of=in_place_of)
        note(
            f"Warning: {error} The alias was not moved. Move it later: rankline promote {ensemble.name} --to "
            f"{ensemble.version}"
        )
        return
    ensemble.activate(in_place_of=in_place_of, then=lambda: registry.move(CHAMPION, registered))


def _open(uri: str) -> "Registry":
    from rankline.registry.mlflow_registry import Registry, RegistryError
    from rankline.runs.store import open_store

    try:
        return Registry(open_store(uri))
    except ArtifactError as error:
        raise RegistryError(str(error)) from None


def _registered(registry: "Registry", ensemble: ExportedEnsemble) -> "RegisteredVersion":
    """Register a version while holding the repository's lock, so that concurrent calls do not register it twice."""
    with FileLock(ensemble.path / f"{REGISTRY}.lock"):
        return registry.register(ensemble)
