"""What a server that stays up needs: new versions are taken over, and models that lost a process come back."""

import threading
from collections.abc import Callable

from serving.ensemble import ExportedEnsemble, active_version
from serving.server import EmbeddedServer, ServerConfig
from workflows.errors import ArtifactError, ServerError

_INTERVAL_S = 0.5


class Supervisor:
    """Looks after a server of one ensemble.

    A new version is loaded beside the one that answers: its steps first, so that one that cannot be loaded changes
    nothing, then the ensemble, which Triton changes between two requests, and the old steps go when their last request
    is answered.

    Args:
        server: runs, with the config of `config_of`.
        ensemble: the version that it loaded.
        follow_versions: take over what becomes the active version on disk.
        tell: is given a line for each event.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        ensemble: ExportedEnsemble,
        *,
        follow_versions: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._server, self._serving, self._tell = server, ensemble, tell
        self._follow_versions = follow_versions
        self._refused: int | None = None
        self._down: set[str] = set()
        self._trouble = ""

    def run(self, stop: threading.Event) -> None:
        """Look twice a second until `stop` is set.

        Raises:
            ServerError: the server has ended.
        """
        while not stop.wait(_INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Look once, and act.

        Raises:
            ServerError: the server has ended.
        """
        self._server.check_alive()
        self._down = (self._down | self._server.dead_models()) & set(self._serving.steps)
        for model in sorted(self._down):
            self._revive(model)
        if self._follow_versions:
            self._follow()

    def _revive(self, model: str) -> None:
        self._tell_trouble(f"a process of {model} has ended; loading it again")
        try:
            self._server.unload(model)  # loading alone would find nothing new in its files
            self._server.load(model)
        except ServerError as error:
            self._tell_trouble(f"{model} cannot be loaded, trying again: {error}")
            return
        self._down.discard(model)
        self._tell(f"{model} is back")

    def _follow(self) -> None:
        old = self._serving
        try:
            wanted = active_version(old.path, old.name)
        except ArtifactError as error:
            self._tell_trouble(f"version {old.version} stays: {error}")
            return
        if wanted == old.version:
            self._refused = None
        elif wanted != self._refused:
            try:
                self._take_over(ExportedEnsemble.load(old.path, wanted))
            except (ArtifactError, ServerError) as error:
                self._refused = wanted
                self._tell(f"version {wanted} cannot be loaded, version {old.version} stays: {error}")

    def _tell_trouble(self, line: str) -> None:
        """Tell it once, not at every step."""
        if line != self._trouble:
            self._tell(line)
        self._trouble = line

    def _take_over(self, new: ExportedEnsemble) -> None:
        old = self._serving
        self._tell(f"loading version {new.version}")
        try:
            for step in new.steps:
                self._server.load(step)
            self._server.load(new.name, new.config)  # not what the file says by now
        except ServerError:
            for step in new.steps:
                self._server.unload(step)
            raise
        self._serving = new
        self._tell(f"version {new.version} answers")
        for step in old.steps:
            try:
                self._server.unload(step)
            except ServerError as error:
                self._tell(f"version {old.version} still takes memory: {error}")


def config_of(ensemble: ExportedEnsemble, **choices: object) -> ServerConfig:
    """How to serve an ensemble and nothing else.

    Args:
        ensemble: any of its versions; the active one is served.
        choices: further fields of `ServerConfig`.
    """
    return ServerConfig(repositories=(ensemble.path,), models=(ensemble.name,), **choices)  # type: ignore[arg-type]
