from collections.abc import Mapping
from pathlib import Path
from threading import Event

import pytest

from rankline.launch.config import LaunchConfig
from rankline.launch.elastic import ElasticRun, HostWatch
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError, RanklineError
from rankline.workflows.core.progress import SILENT

_LIMIT_S = 60
TWO = WorkersConfig(workers=2, min_workers=1, max_workers=2)


class Hosts:
    """Hosts that a test names anew; knows when it was asked again."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self.hosts, self.asked = hosts, Event()

    def find(self) -> Mapping[str, int]:
        self.asked.set()
        return self.hosts

    def wait_until_asked_twice(self) -> None:
        """After that, the first of the two answers was dealt with."""
        for _ in range(2):
            self.asked.clear()
            assert self.asked.wait(_LIMIT_S)


def test_generation_ends_at_its_next_checkpoint_where_hosts_join_that_can_be_reached() -> None:
    hosts, ended = Hosts({"localhost": 1}), Event()
    watch = HostWatch({"localhost": 1}, hosts.find, max_workers=2)
    with watch.during(ended.set):
        for named in ({"localhost": 1}, {"localhost": 1, "no-such-host.invalid": 1}):
            hosts.hosts = named
            hosts.wait_until_asked_twice()
            watch.stop_if_hosts_joined()
            assert not ended.is_set()
        hosts.hosts = {"localhost": 1, "127.0.0.1": 1}
        hosts.wait_until_asked_twice()
        assert not ended.is_set()
        watch.stop_if_hosts_joined()
        assert ended.is_set()
    assert watch.stop_reason == "more hosts joined."


def test_generation_with_as_many_workers_as_there_may_be_goes_on_when_hosts_join() -> None:
    hosts, ended = Hosts({"localhost": 1, "127.0.0.1": 1}), Event()
    watch = HostWatch({"localhost": 1}, hosts.find, max_workers=1)
    with watch.during(ended.set):
        hosts.wait_until_asked_twice()
        watch.stop_if_hosts_joined()
    assert not ended.is_set()


def test_generation_ends_at_once_where_a_host_is_named_no_more() -> None:
    hosts, ended = Hosts({"a": 1}), Event()
    watch = HostWatch({"a": 1, "b": 1}, hosts.find, max_workers=2)
    with watch.during(ended.set):
        assert ended.wait(_LIMIT_S)
    assert watch.stop_reason == "b left the list of hosts."


def test_hosts_that_take_too_few_workers_end_the_run(tmp_path: Path) -> None:
    options = LaunchConfig(hosts="localhost:1,no-such-host.invalid:1")
    run = ElasticRun(["true"], TWO, options, tmp_path, SILENT, hosts_timeout_s=0.0)
    with pytest.raises(RanklineError, match="reachable hosts take 1 of at least 2 workers after 0 s"):
        run.run(2)


def test_mpi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mpi cannot be combined with --max-workers"):
        ElasticRun(["true"], TWO, LaunchConfig(mpi=True), tmp_path, SILENT)
