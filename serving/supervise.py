"""What a server that stays up needs: it switches to new versions, and comes back when it or a model's process ended."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from serving.ensemble import ExportedEnsemble, active_version
from serving.server import EmbeddedServer, ServerConfig
from workflows.errors import ArtifactError, ServerError

INTERVAL_S = 0.5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0  # between two tries to switch to a version that was refused


class Follower:
    """Switches to what becomes the active version on disk.

    Args:
        ensemble: the active version.
        report: is given a line for each event.
        clock: seconds.
    """

    def __init__(
        self, ensemble: ExportedEnsemble, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.serving = ensemble
        """The active version."""
        self._report, self._clock = report, clock
        self._refused: int | None = None
        self._pause_s, self._next_try_s = _SHORTEST_PAUSE_S, 0.0
        self._trouble = ""

    def step(self, switch_to: Callable[[ExportedEnsemble], None]) -> None:
        """Look once.

        A version that was refused is tried again after pauses that grow: its files may not have been copied whole, the
        disk did not answer, or memory was short. It is reported again where the reason is another one.

        Args:
            switch_to: makes a version the active one, or raises ArtifactError, OSError or ServerError and
                leaves the old one.
        """
        old = self.serving
        try:
            wanted = active_version(old.path, old.name)
        except (ArtifactError, OSError) as error:
            self._report_trouble(f"version {old.version} stays active: {error}")
            return
        if wanted != self._refused:
            self._refused, self._pause_s, self._next_try_s, self._trouble = None, _SHORTEST_PAUSE_S, 0.0, ""
        if wanted == old.version or self._clock() < self._next_try_s:
            return
        try:
            new = ExportedEnsemble.load(old.path, wanted)
            switch_to(new)
            self.serving = new
        except (ArtifactError, OSError, ServerError) as error:
            self._refused, self._next_try_s = wanted, self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._report_trouble(f"version {wanted} cannot be loaded, version {old.version} stays active: {error}")

    def _report_trouble(self, line: str) -> None:
        """Report it once, not at every step."""
        if line != self._trouble:
            self._report(line)
        self._trouble = line


class Supervisor:
    """Looks after a server of one ensemble.

    A new version is loaded beside the active one: its steps first, so that one that cannot be loaded changes
    nothing, then the ensemble, which Triton changes between two requests, and the old steps go when their last request
    is answered. A server that has ended by itself is started again with the active version, at the same addresses:
    Triton 24.10 ends when a request is cancelled at the wrong moment (triton-inference-server/server#7840), and when a
    Python model's process is killed while it holds a lock in the memory that it shares with the server (#8882).

    Args:
        server: runs, with the config of `config_of`.
        ensemble: the version that it loaded.
        follow_versions: switch to what becomes the active version on disk.
        report: is given a line for each event.
        least_up_s: a server that ends sooner after its start is not started again.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        ensemble: ExportedEnsemble,
        *,
        follow_versions: bool,
        report: Callable[[str], None],
        least_up_s: float = 20.0,
    ) -> None:
        self.serving = ensemble
        """The active version."""
        self._server, self._report = server, report
        self._use = ensemble.use()  # so that no export deletes what this server may have to load again
        self._follower = Follower(ensemble, report) if follow_versions else None
        self._down: set[str] = set()
        self._rejected: ExportedEnsemble | None = None  # Triton may yet finish loading it
        self._trouble = ""
        self._least_up_s, self._started = least_up_s, time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Look twice a second until `stop` is set.

        Raises:
            ServerError: as `step`.
        """
        while not stop.wait(INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Look once, and act.

        Raises:
            ServerError: the server has ended soon after its start, or cannot be started again.
        """
        if time.monotonic() < self._started + self._least_up_s:
            self._server.check_alive()
        elif reason := self._server.why_ended():
            self._restart(reason)
        for model in sorted(self._look_for_down()):
            self._revive(model)
        if self.has_to_go_back:
            with suppress(ServerError):  # at the next step, then
                self._go_back()
        if self._follower is not None:
            self._follower.step(self.switch_to)

    @property
    def has_to_go_back(self) -> bool:
        """Whether a takeover failed and the server has not yet said that it has the old ensemble."""
        return self._rejected is not None

    def find_down(self) -> set[str]:
        """Steps that have lost a process and are not yet back; the ensemble, where the server does not have it ready.

        Raises:
            ServerError: the server has ended.
        """
        self._server.check_alive()
        return self._look_for_down()

    def _look_for_down(self) -> set[str]:
        """As `find_down`, of a server that may end meanwhile, which the next step finds."""
        self._down = (self._down | self._server.dead_models()) & set(self.serving.steps)
        if not self._server.is_ready(self.serving.name, self.serving.version):
            self._down.add(self.serving.name)
        return set(self._down)

    def switch_to(self, new: ExportedEnsemble) -> None:
        """Make another version the active one; no request fails.

        Raises:
            ServerError: it cannot be loaded. The old one goes on.
        """
        old = self.serving
        if self._rejected is not None:
            self._go_back()
        use = new.use()
        self._report(f"loading version {new.version}")
        try:
            for step in new.steps:
                self._server.load(step)
            self._rejected = new
            self._server.load(new.name, new.config)  # not what the file says by now
        except ServerError:
            if self._rejected is None:
                self._server.unload(*new.steps)
            else:
                self._go_back()
            raise
        self._rejected = None
        self.serving, self._use = new, use
        self._report(f"version {new.version} is active")
        try:
            self._server.unload(*old.steps)
        except ServerError as error:
            self._report(f"version {old.version} still takes memory: {error}")

    def _go_back(self) -> None:
        """Undo a takeover that failed, in the order in which there is always an ensemble whose steps are loaded.

        One whose loading took too long may still become the active one, so the steps of the rejected version go only
        when the server has said that it has the old ensemble.

        Raises:
            ServerError: it has not said so; the steps of both versions stay.
        """
        assert self._rejected is not None
        self._server.load(self.serving.name, self.serving.config)
        steps = set(self._rejected.steps) - set(self.serving.steps)
        self._rejected = None
        self._server.unload(*sorted(steps))

    def _restart(self, reason: str) -> None:
        self._report(f"{reason} Starting it again.")
        self._server.restart(self.serving.steps)
        self._server.load(self.serving.name, self.serving.config)  # not what the file says by now
        self._started = time.monotonic()
        self._down.clear()
        self._rejected = None
        self._report(f"version {self.serving.version} is active again")

    def _revive(self, model: str) -> None:
        is_whole = model == self.serving.name
        reason = "is not ready" if is_whole else "has lost a process"
        self._report_trouble(f"{model} {reason}; loading it again")
        try:
            if is_whole:
                for step in self.serving.steps:
                    self._server.load(step)
                self._server.load(model, self.serving.config)
            else:
                self._server.unload(model)  # loading alone would find nothing new in its files
                self._server.load(model)
        except ServerError as error:
            self._report_trouble(f"{model} cannot be loaded, trying again: {error}")
            return
        self._down.discard(model)
        self._report(f"{model} is back")

    def _report_trouble(self, line: str) -> None:
        """Report it once, not at every step."""
        if line != self._trouble:
            self._report(line)
        self._trouble = line


def config_of(ensemble: ExportedEnsemble, **choices: object) -> ServerConfig:
    """How to serve an ensemble and nothing else.

    Args:
        ensemble: any of its versions; the active one is served.
        choices: further fields of `ServerConfig`.
    """
    return ServerConfig(repositories=(ensemble.path,), models=(ensemble.name,), **choices)  # type: ignore[arg-type]
