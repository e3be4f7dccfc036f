"""Settings for launching several workers. This module is fast to import."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankline.launch.hosts import LOCAL, discover_hosts, parse_hosts
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Hosts and resources of the workers.

    Attributes:
        hosts: hosts and the number of workers on each, such as a:2,b:2, reachable by ssh without a password and with
            the same paths; by default all workers run on this machine.
        host_discovery_script: program that prints such hosts, one per line; an elastic run calls it every second.
        network_interface: network interface for traffic between workers, such as eth0; by default one that all hosts
            have.
        mpi: use MPI instead of Gloo to start the workers and to communicate between them.
        threads: threads of each process, for computing and for reading; 0 divides the cores among the workers.
        bind_cores: bind each worker of a machine to cores of its own, unless there are more workers than cores.
    """

    hosts: str = ""
    host_discovery_script: str = ""
    network_interface: str = ""
    mpi: bool = False
    threads: int = 0
    bind_cores: bool = True

    def __post_init__(self) -> None:
        check_at_least(self, 0, "threads")
        if self.hosts and self.host_discovery_script:
            raise ConfigError("--hosts and --host-discovery-script both say where workers run. Give one of them.")
        self._named_hosts()

    def find_hosts(self, config: WorkersConfig) -> Mapping[str, int]:
        """Return the current number of workers per host; only this machine if no hosts are given."""
        if self.host_discovery_script:
            return discover_hosts(Path(self.host_discovery_script))
        return self._named_hosts() or {LOCAL: max(config.workers, config.max_workers)}

    def num_workers(self, config: WorkersConfig) -> int:
        """Return the number of workers to start with."""
        number = sum(self._named_hosts().values())
        if config.workers > 1 and 0 < number < config.workers:
            raise ConfigError(
                f"--workers is {config.workers}, and --hosts {self.hosts} takes {number}. Name more hosts, or "
                "let them take more workers (HOST:NUMBER)."
            )
        if config.workers > 1 or not number:
            return config.workers
        return min(number, config.max_workers) if config.is_elastic else number

    def is_asked_for(self, config: WorkersConfig) -> bool:
        """Whether to launch workers at all.

        Raises:
            ConfigError: a discovery script is given for a run that is not elastic.
        """
        if self.host_discovery_script and not config.is_elastic:
            raise ConfigError(
                "--host-discovery-script is for elastic runs. Give --min-workers and --max-workers too, or --hosts in "
                "its place."
            )
        return config.is_elastic or bool(self.hosts) or config.workers > 1

    def _named_hosts(self) -> Mapping[str, int]:
        return parse_hosts(self.hosts.split(",")) if self.hosts else {}
