"""The choices of starting several workers. Importing this file imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass

from rankline.elastic_hosts import FixedHosts
from training.affinity import MODES
from training.config import WorkersConfig
from workflows.choices import check_at_least, check_choice
from workflows.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where workers run, and what each may take.

    Attributes:
        hosts: machines and the number of workers on each, such as a:2,b:2, reached by ssh without a password, with the
            same paths; without it all workers are on this one.
        host_discovery_script: program that prints such hosts, one a line, now and then asked by an elastic run.
        network_interface: that workers talk over, such as eth0; without it the one that all hosts have.
        mpi: let MPI start the workers and exchange for them, in place of Gloo.
        threads: of each process, for computing and for reading; 0 shares the cores out between the workers.
        affinity: which cores each worker of a machine may use: disabled for any, socket, single, single_unique,
            socket_unique_interleaved or socket_unique_continuous. Workers that are more than the cores, or of an
            elastic run, may use any.
    """

    hosts: str = ""
    host_discovery_script: str = ""
    network_interface: str = ""
    mpi: bool = False
    threads: int = 0
    affinity: str = "socket_unique_continuous"

    def __post_init__(self) -> None:
        check_at_least(self, 0, "threads")
        check_choice(self, "affinity", self.affinity in MODES, " or ".join(MODES))
        if self.hosts and self.host_discovery_script:
            raise ConfigError("--hosts and --host-discovery-script both say where workers run. Give one of them.")
        if self.hosts:
            FixedHosts.parse(self.hosts)

    @property
    def places(self) -> Mapping[str, int]:
        """Host → how many workers it takes; empty if none are named."""
        return FixedHosts.parse(self.hosts).find() if self.hosts else {}

    def num_workers(self, config: WorkersConfig) -> int:
        """How many workers to start: as many as `config` says, or else as many as the hosts and the run take.

        Raises:
            ConfigError: the hosts do not take so many.
        """
        number = sum(self.places.values())
        if config.workers > 1 and 0 < number < config.workers:
            raise ConfigError(
                f"--workers is {config.workers}, and --hosts {self.hosts} takes {number}. Name more hosts, or "
                "let them take more workers (HOST:NUMBER)."
            )
        if config.workers > 1 or not number:
            return config.workers
        return min(number, config.max_workers) if config.is_elastic else number

    def is_asked_for(self, config: WorkersConfig) -> bool:
        """Whether there is anything to launch: workers on named hosts, more than one, or an elastic run.

        Raises:
            ConfigError: a script names hosts for a run that is not elastic.
        """
        if self.host_discovery_script and not config.is_elastic:
            raise ConfigError(
                "--host-discovery-script is asked again while an elastic run lasts. Give --min-workers and "
                "--max-workers too, or --hosts in its place."
            )
        return config.is_elastic or bool(self.hosts) or config.workers > 1
