"""Supervise a server: switch it to new versions, and restart it or a model's process after a crash."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rankline.serving.repository.ensemble import ExportedEnsemble, active_version
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.workflows.core.errors import ArtifactError, RanklineError, ServerError

INTERVAL_S = 0.5
_MAX_MISSES = 10  # consecutive checks without a response, up to a second each, after which the server is restarted
_STEADY_S = 10.0
# Pause and start together take less time than our client's retries. A server that was running is restarted sooner,
# since it answers requests between two crashes.
_MAX_PAUSE_AFTER_RUN_S, _MAX_PAUSE_AFTER_START_S = 2.0, 10.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 5.0, 300.0  # between attempts to switch to a version that failed


class Follower:
    """A watcher that switches to each version activated on disk and reports each event as a line to `report`."""

    def __init__(
        self, ensemble: ExportedEnsemble, report: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.serving = ensemble
        """The active version."""
        self._report, self._clock = report, clock
        self._refused: int | None = None
        self._pause_s, self._next_try_s = _MIN_PAUSE_S, 0.0
        self._trouble = ""

    def step(self, switch_to: Callable[[ExportedEnsemble], None]) -> None:
        """Check once, and call `switch_to` if a new version is active on disk. `switch_to` must raise if the old
        version stays in use.

        A version that could not be loaded is retried after growing pauses: its files may have been incomplete, the disk
        unavailable or memory short. It is reported again only if the reason changes.
        """
        old = self.serving
        try:
            wanted = active_version(old.path, old.name)
        except (ArtifactError, OSError) as error:
            self._report_trouble(f"version {old.version} stays active: {error}")
            return
        if wanted != self._refused:
            self._refused, self._pause_s, self._next_try_s, self._trouble = None, _MIN_PAUSE_S, 0.0, ""
        if wanted == old.version or self._clock() < self._next_try_s:
            return
        try:
            new = ExportedEnsemble.load(old.path, wanted)
            switch_to(new)
            self.serving = new
        except (ArtifactError, OSError, ServerError) as error:
            self._refused, self._next_try_s = wanted, self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
            self._report_trouble(f"version {wanted} cannot be loaded, version {old.version} stays active: {error}")

    def _report_trouble(self, line: str) -> None:
        if line != self._trouble:
            self._report(line)
        self._trouble = line


class Backoff:
    """A restart schedule: immediately after a long run, otherwise after pauses that double each time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures, self._start_s = 0, -math.inf
        self._running_since_s: float | None = None

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._start_s

    def note_end(self) -> float:
        """Record a crash or a failed start, and return the seconds until the next start."""
        now_s, longest_s = self._clock(), _MAX_PAUSE_AFTER_START_S
        if self._running_since_s is not None:
            longest_s = _MAX_PAUSE_AFTER_RUN_S
            if now_s - self._running_since_s >= _STEADY_S:
                self._num_failures = 0
        pause_s = min(2.0 ** (min(self._num_failures, 30) - 1), longest_s) if self._num_failures else 0.0
        self._num_failures, self._start_s, self._running_since_s = self._num_failures + 1, now_s + pause_s, None
        return pause_s

    def note_start(self) -> None:
        self._running_since_s = self._clock()


class Supervisor:
    """A supervisor that keeps the server of one ensemble running and can switch it to new versions.

    A new version is loaded next to the active one: first its steps, so that a failure changes nothing, then the
    ensemble, which Triton replaces between two requests. The old steps are unloaded when their last request is
    answered. A server that crashes or hangs is restarted with the active version, at the same addresses; see `Backoff`.
    Failed restarts are retried. Triton 24.10 crashes if a request is canceled at the wrong moment
    (triton-inference-server/server#7840), if a Python model's process is killed while it holds a lock in shared memory
    (#8882), or if it receives large JSON over HTTP.

    `server` runs with the config of `config_of`, and `report` is called with a line for each event.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        ensemble: ExportedEnsemble,
        *,
        follow_versions: bool,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serving = ensemble
        """The active version."""
        self._server, self._report = server, report
        self._use = ensemble.use()  # exports must not delete a version that may have to be reloaded
        self._follower = Follower(ensemble, report, clock=clock) if follow_versions else None
        self._backoff, self._is_ended = Backoff(clock), False
        self._num_misses = 0
        self._down: set[str] = set()
        self._rejected: ExportedEnsemble | None = None  # Triton may still finish loading it
        self._troubles: dict[str, str] = {}
        """Server or model → why it cannot be started or loaded, until it can be."""
        self._backoff.note_start()

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(INTERVAL_S):
            self.step()

    def step(self) -> None:
        """Check the server once, and act on any problem. Return immediately during the pause before a restart."""
        self._look_for_end()
        if self._is_ended and not self._start_again():
            return
        down = self._look_for_down()
        if self._num_misses:  # further calls would hang, too
            return
        for model in sorted(down):
            self._revive(model)
        if self._rejected is not None:
            with suppress(ServerError, OSError):  # retried at the next step
                self._go_back()
        if self._follower is not None:
            self._follower.step(self.switch_to)

    def _look_for_down(self) -> set[str]:
        """Return the steps that have lost a process, and the ensemble if it is not ready."""
        self._down = (self._down | self._server.dead_models()) & set(self.serving.steps)
        is_ready = self._server.is_ready(self.serving.name, self.serving.version)
        self._num_misses = self._num_misses + 1 if is_ready is None else 0
        if is_ready is False:
            self._down.add(self.serving.name)
        return set(self._down)

    def switch_to(self, new: ExportedEnsemble) -> None:
        """Switch to another version without failing a request, or raise ServerError and keep the old version active."""
        old = self.serving
        if self._rejected is not None:
            self._go_back()
        use = new.use()
        self._report(f"loading version {new.version}")
        try:
            for step in new.steps:
                self._server.load(step)
            self._rejected = new
            self._server.load(new.name, new.config)  # the file may already name another version
        except (ServerError, OSError):
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
            self._report(f"version {old.version} still uses memory: {error}")

    def _go_back(self) -> None:
        """Undo a failed switch, in an order that never leaves the active ensemble without its steps.

        An ensemble that took too long to load may still become active, so the steps of the rejected version are
        unloaded only after the server has confirmed that it loaded the old ensemble.

        Raises:
            ServerError: the server did not confirm; the steps of both versions stay loaded.
        """
        assert self._rejected is not None
        self._server.load(self.serving.name, self.serving.config)
        steps = set(self._rejected.steps) - set(self.serving.steps)
        self._rejected = None
        self._server.unload(*sorted(steps))

    def _look_for_end(self) -> None:
        if self._is_ended:
            return
        reason = self._server.exit_reason()
        if reason is None and self._num_misses > _MAX_MISSES:
            reason = f"tritonserver did not respond to {self._num_misses} checks in a row."
            self._server.kill()  # a hanging server does not react to SIGTERM
        if reason is not None:
            self._is_ended = True
            pause_s = self._backoff.note_end()
            self._report(f"{reason} Restarting it{f' in {pause_s:g} s' if pause_s else ''}.")

    def _start_again(self) -> bool:
        """Restart an exited server once the pause is over, and return whether it is running."""
        if not self._backoff.is_due:
            return False
        try:
            self._server.restart(self.serving.steps)
            self._server.load(self.serving.name, self.serving.config)  # the file may already name another version
        except (RanklineError, OSError) as error:
            self._backoff.note_end()
            self._report_trouble("tritonserver", f"could not be restarted, retrying until it can: {error}")
            return False
        self._backoff.note_start()
        self._is_ended, self._num_misses = False, 0
        self._down.clear()
        self._troubles.clear()
        self._rejected = None
        self._report(f"version {self.serving.version} is active again")
        return True

    def _revive(self, model: str) -> None:
        is_whole = model == self.serving.name
        reason = "is not ready" if is_whole else "has lost a process"
        if model not in self._troubles:
            self._report(f"{model} {reason}; reloading it")
        try:
            if is_whole:
                for step in self.serving.steps:
                    self._server.load(step)
                self._server.load(model, self.serving.config)
            else:
                self._server.unload(model)  # loading alone would skip unchanged files
                self._server.load(model)
        except (RanklineError, OSError) as error:
            self._report_trouble(model, f"cannot be loaded, retrying: {error}")
            return
        self._down.discard(model)
        self._troubles.pop(model, None)
        self._report(f"{model} is ready again")

    def _report_trouble(self, what: str, trouble: str) -> None:
        if self._troubles.get(what) != trouble:
            self._report(f"{what} {trouble}")
        self._troubles[what] = trouble


def config_of(
    ensemble: ExportedEnsemble, *, port: int = 0, http_port: int | None = None, **choices: object
) -> ServerConfig:
    """Return the server config for one ensemble. `choices` sets other fields.

    Metrics use the port after `port`, or the one after that if HTTP uses it, and any free port if there is none.
    """
    after = (number for number in (port + 1, port + 2) if port and number <= 65535 and number != http_port)
    return ServerConfig(
        repositories=(ensemble.path,),
        models=(ensemble.name,),
        grpc_port=port,
        http_port=http_port,
        metrics_port=next(after, 0),
        **choices,  # type: ignore[arg-type]
    )
