"""The launcher: `rankline train RECIPE --workers N` starts the workers, shows them as one run, and stops them together.

Each worker runs the same command line. Its output carries records for the launcher (`rankline.launch.worker`); the
rest of the output goes to a log. In an elastic run, all workers restart from the last checkpoint when a worker dies or
hosts join, as with torchrun. Each start is a generation (`rankline.training.run.checkpoint.Generation`). A restart
costs seconds, for importing TensorFlow and tracing the model. In return, workers never have to change worlds, and only
the checkpoint has to survive.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from rankline.launch.config import LaunchConfig, first_places, reachable
from rankline.launch.horovodrun import WorkerGroup
from rankline.launch.worker_output import Listener, clear_logs
from rankline.training.distributed.config import WorkersConfig
from rankline.training.run.checkpoint import Generation
from rankline.workflows.core.errors import ConfigError, RanklineError, WorkerLostError
from rankline.workflows.core.progress import Progress, background_thread

_HOSTS_INTERVAL_S = 1.0
_HOSTS_TIMEOUT_S = 600.0  # same as horovodrun
_MAX_FAILURES = 5


def launch(
    command: Sequence[str], config: WorkersConfig, options: LaunchConfig, logs: Path, progress: Progress
) -> Mapping[str, str]:
    clear_logs(logs)
    number = options.num_workers(config)
    if config.is_elastic:
        return ElasticRun(command, config, options, logs, progress).run(number)
    hosts = first_places(options.find_hosts(config), number)
    progress.update(0, 1, f"starting {number} worker{'s' if number > 1 else ''}")
    with (
        Listener(logs, progress, mpi=options.mpi) as listener,
        WorkerGroup(command, hosts, options, start_timeout_s=config.timeout_s) as group,
    ):
        return listener.result(group.listen(listener))


class ElasticRun:
    def __init__(
        self,
        command: Sequence[str],
        config: WorkersConfig,
        options: LaunchConfig,
        logs: Path,
        progress: Progress,
        *,
        hosts_timeout_s: float = _HOSTS_TIMEOUT_S,
        max_failures: int = _MAX_FAILURES,
    ) -> None:
        if options.mpi:
            raise ConfigError("--mpi cannot be combined with --max-workers. Remove one of them.")
        self._command, self._config, self._options = command, config, options
        self._logs, self._progress = logs, progress
        self._hosts_timeout_s, self._max_failures = hosts_timeout_s, max_failures
        self._hosts: Mapping[str, int] = options.find_hosts(config)

    def run(self, num_workers: int) -> Mapping[str, str]:
        """Run generations of workers until a worker publishes a model, and return the record of that model."""
        generation, num_failures = Generation(), 0
        hosts = self._wait_for_hosts(num_workers)
        while True:
            watch = HostWatch(hosts, self._find_hosts, self._config.max_workers)
            with Listener(
                self._logs, self._progress, mpi=False, after_checkpoint=watch.stop_if_hosts_joined
            ) as listener:
                cause = self._run_generation(generation, hosts, listener, watch)
                if listener.model is not None:
                    return listener.model
                listener.note(f"generation {generation.number} ended: {cause}")
            num_failures = 0 if listener.num_checkpoints or watch.stop_reason else num_failures + 1
            if num_failures == self._max_failures:
                raise RanklineError(
                    f"workers were lost {num_failures} times in a row before a new checkpoint was saved. Last cause: "
                    f"{cause} If the workers ran out of memory, use fewer workers; otherwise, reduce --commit-every."
                )
            before, hosts = hosts, self._wait_for_hosts(self._config.min_workers)
            if not watch.stop_reason and (lost := sorted(before.keys() - hosts.keys())):
                cause = f"{', '.join(lost)} cannot be reached."
            generation = Generation(
                number=generation.number + 1,
                run_id=listener.run_id or generation.run_id,
                has_checkpoint=generation.has_checkpoint or listener.num_checkpoints > 0,
                cause=cause,
            )

    def _run_generation(
        self, generation: Generation, hosts: Mapping[str, int], listener: Listener, watch: "HostWatch"
    ) -> str:
        """Run one generation of workers, and return the reason if it ended without a model."""
        number = sum(hosts.values())
        note = f"starting {number} worker{'s' if number > 1 else ''}"
        self._progress.update(0, 1, f"{note}. {generation.cause}" if generation.cause else note)
        group = WorkerGroup(
            self._command,
            hosts,
            self._options,
            start_timeout_s=self._config.timeout_s,
            environment=generation.to_environment(),
        )
        with group, watch.during(group.terminate):
            status = group.listen(listener)
        if listener.model is not None or watch.stop_reason:
            return watch.stop_reason
        failure = listener.failure(status)
        if not isinstance(failure, WorkerLostError):
            raise failure
        return str(failure)

    def _find_hosts(self) -> Mapping[str, int]:
        """Return the current hosts, or the previous ones if the discovery script fails or lists none.

        The script may read a list that is being written. If hosts are really gone, the run loses its workers anyway.
        """
        with suppress(ConfigError):
            self._hosts = self._options.find_hosts(self._config) or self._hosts
        return self._hosts

    def _wait_for_hosts(self, num_workers: int) -> dict[str, int]:
        """Wait until the hosts have room for `num_workers` workers, and return the number of workers per host."""
        deadline_s = time.monotonic() + self._hosts_timeout_s
        while True:
            places = first_places(reachable(self._find_hosts()), self._config.max_workers)
            if (number := sum(places.values())) >= num_workers:
                return places
            found = f"reachable hosts can run only {number} of the {num_workers} required workers"
            if time.monotonic() > deadline_s:
                raise RanklineError(
                    f"after {self._hosts_timeout_s:.0f} s, {found}. Make sure that `ssh HOST true` works without a "
                    "password for enough hosts, or request fewer workers."
                )
            self._progress.update(0, 1, f"waiting: {found}")
            time.sleep(_HOSTS_INTERVAL_S)


class HostWatch:
    def __init__(
        self, places: Mapping[str, int], find_hosts: Callable[[], Mapping[str, int]], max_workers: int
    ) -> None:
        self.stop_reason = ""
        """Why this watch ended the generation, or an empty string."""
        self._places, self._find_hosts, self._max_workers = places, find_hosts, max_workers
        self._have_hosts_joined = False

    @contextmanager
    def during(self, terminate: Callable[[], None]) -> Iterator[None]:
        self._terminate = terminate
        with background_thread(self._watch):
            yield

    def stop_if_hosts_joined(self) -> None:
        """End the generation if the hosts now have room for more workers.

        Call this right after a checkpoint, so that no work is lost.
        """
        if self._have_hosts_joined:
            self._stop("more hosts joined.")

    def _watch(self, stop: Event) -> None:
        while not stop.wait(_HOSTS_INTERVAL_S):
            hosts = self._find_hosts()
            if gone := sorted(self._places.keys() - hosts.keys()):
                self._stop(f"{', '.join(gone)} left the list of hosts.")
                return
            self._have_hosts_joined = self._have_hosts_joined or self._could_grow(hosts)

    def _could_grow(self, hosts: Mapping[str, int]) -> bool:
        number = sum(self._places.values())
        if number == self._max_workers:
            return False
        unused = {host: size for host, size in hosts.items() if host not in self._places}
        return sum(hosts[host] for host in self._places) + sum(reachable(unused).values()) > number

    def _stop(self, reason: str) -> None:
        if not self.stop_reason:
            self.stop_reason = reason
            self._terminate()
