"""Follows an alias: downloads the version it names if necessary, and makes it active on this machine."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rankline.recipes.workspace import NAMES
from rankline.registry.activation import keep_registry_uri
from rankline.registry.mlflow_registry import RegisteredVersion, Registry, RegistryError, ensure_downloaded
from rankline.runs.store import open_store
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.workflows.core.errors import ArtifactError, ConfigError

INTERVAL_S = 1.0


class Alias(NamedTuple):
    model: str
    alias: str

    @classmethod
    def parse(cls, uri: str) -> "Alias":
        found = re.fullmatch(f"models:/({NAMES})@({NAMES})", uri)
        if found is None:
            raise ConfigError(f"--follow is {uri!r}, expected models:/NAME@ALIAS, such as models:/movielens@champion.")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"models:/{self.model}@{self.alias}"


class AliasFollower:
    """A follower that activates the version an alias points to, whenever the alias moves.

    A version that is not on disk is downloaded and checked. A damaged version is not retried until the alias moves; an
    unresponsive store is retried.
    """

    def __init__(self, alias: Alias, path: Path, uri: str, report: Callable[[str], None]) -> None:
        self._alias, self._path, self._uri, self._report = alias, path, uri, report
        self._registry = Registry(open_store(uri))
        self._seen: RegisteredVersion | None = None
        self._trouble = ""

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Check the alias once. On an error, keep the active version, and report the error if it is a new one."""
        try:
            self.follow()
            self._trouble = ""
        except Exception as error:  # MLflow can raise anything; the thread must continue
            if str(error) != self._trouble:
                self._report(f"{self._alias} cannot be followed, the active version stays: {error}")
            self._trouble = str(error)

    def follow(self) -> None:
        """Activate the version that the alias points to, if the alias has moved since the last check."""
        wanted = self._registry.at(*self._alias)
        if wanted is None:
            raise RegistryError(
                f"{self._alias} does not exist in {self._uri}. "
                f"Register a version: rankline register {self._alias.model}"
            )
        if wanted == self._seen:  # comparing with the active version would undo a promotion between its two writes
            return
        try:
            ensemble = ensure_downloaded(self._registry, wanted, self._path, self._report)
        except RegistryError:
            raise
        except ArtifactError:  # do not retry a damaged version
            self._seen = wanted
            raise
        if not self._is_active(ensemble):
            self._report(f"{self._alias} now points to {wanted.words}")
            ensemble.activate()
        self._seen = wanted
        keep_registry_uri(self._path, self._uri)

    def _is_active(self, ensemble: ExportedEnsemble) -> bool:
        try:
            return ensemble.is_active
        except ArtifactError:
            return False
