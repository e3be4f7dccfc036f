"""The choices of starting several workers. Importing this file imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankline.launch.hosts import LOCAL, discover_hosts, parse_hosts
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where workers run, and what each may take.

    Attributes:
        hosts: machines and the number of workers on each, such as a:2,b:2, reached by ssh without a password, with the
            same paths; without it all workers are on this one.
        host_discovery_script: program that prints such hosts, one a line; an elastic run asks it every second.
        network_interface: interface that workers talk over, such as eth0; without it the one that all hosts have.
        mpi: let MPI start the workers and exchange for them, in place of Gloo.
        threads: threads of each process, for computing and for reading; 0 divides the cores among the workers.
        bind_cores: give each worker of a machine cores of its own, unless there are more workers than cores.
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
        """Host → how many workers it takes now; this machine if no hosts are given."""
        if self.host_discovery_script:
            return discover_hosts(Path(self.host_discovery_script))
        return self._named_hosts() or {LOCAL: max(config.workers, config.max_workers)}

    def num_workers(self, config: WorkersConfig) -> int:
        """How many workers to start with.

        Raises:
            ConfigError: the hosts do not take so many.
        """
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
            ConfigError: a script lists hosts for a run that is not elastic.
        """
        if self.host_discovery_script and not config.is_elastic:
            raise ConfigError(
                "--host-discovery-script is for elastic runs. Give --min-workers and --max-workers too, or --hosts in "
                "its place."
            )
        return config.is_elastic or bool(self.hosts) or config.workers > 1

    def _named_hosts(self) -> Mapping[str, int]:
        return parse_hosts(self.hosts.split(",")) if self.hosts else {}
