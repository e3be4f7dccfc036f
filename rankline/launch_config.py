"""The choices of starting several workers. Importing this file imports nothing heavy."""

from dataclasses import dataclass

from rankline.elastic_hosts import FixedHosts
from training.config import WorkersConfig
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
    """

    hosts: str = ""
    host_discovery_script: str = ""
    network_interface: str = ""
    mpi: bool = False
    threads: int = 0

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ConfigError(f"threads is {self.threads}, expected a whole number of at least 0.")
        if self.hosts:
            FixedHosts.parse(self.hosts)

    @property
    def num_places(self) -> int:
        """How many workers the hosts take; 0 if none are named."""
        return sum(FixedHosts.parse(self.hosts).find().values()) if self.hosts else 0

    def num_workers(self, config: WorkersConfig) -> int:
        """How many workers to start: as many as `config` says, or else as many as the hosts take.

        Raises:
            ConfigError: the hosts do not take so many.
        """
        if config.workers > 1 and 0 < self.num_places < config.workers:
            raise ConfigError(
                f"--workers is {config.workers}, and --hosts {self.hosts} takes {self.num_places}. Name more hosts, or "
                "let them take more workers (HOST:NUMBER)."
            )
        return config.workers if config.workers > 1 else max(1, self.num_places)

    def is_asked_for(self, config: WorkersConfig) -> bool:
        """Whether there is anything to launch: more than one worker, or an elastic run."""
        return config.is_elastic or self.num_workers(config) > 1
