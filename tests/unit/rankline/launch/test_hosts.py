"""Hosts of a run: their list, their script, how many workers they take, and those that come and go."""

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.config import LaunchConfig, discover_hosts, first_places, parse_hosts, reachable
from rankline.launch.elastic import ElasticRun, HostWatch
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError, RanklineError
from rankline.workflows.core.progress import SILENT


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_hosts_have_room_for_one_worker_unless_they_say_so() -> None:
    assert parse_hosts(["a:2", " b", "10.0.0.1:12"]) == {"a": 2, "b": 1, "10.0.0.1": 12}


@pytest.mark.parametrize("text", ["", "a:0", "a:x", ":2", "a:1,a:2", "-oProxyCommand=id", "$(id)", "a b"])
def test_text_that_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected NAME:NUMBER\. Each name may appear only once\."):
        parse_hosts(text.split(","))


def test_script_is_asked_again_each_time(tmp_path: Path) -> None:
    hosts = script(tmp_path / "hosts", 'cat "$(dirname "$0")/list"')
    for text, places in (("a:2\nb\n", {"a": 2, "b": 1}), ("b\n", {"b": 1}), ("", {})):
        (tmp_path / "list").write_text(text)
        assert discover_hosts(hosts) == places


def test_script_that_fails_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="broken failed: .*exit status 3.*prints one HOST:NUMBER"):
        discover_hosts(script(tmp_path / "broken", "exit 3"))
    (tmp_path / "notes.txt").write_text("a:2")
    with pytest.raises(ConfigError, match=r"notes\.txt failed: .*Permission denied"):
        discover_hosts(tmp_path / "notes.txt")


@given(hosts=st.dictionaries(st.text(min_size=1), st.integers(1, 9)), number=st.integers(0, 40))
def test_first_hosts_are_filled_first(hosts: dict[str, int], number: int) -> None:
    places = first_places(hosts, number)
    assert sum(places.values()) == min(number, sum(hosts.values()))
    assert list(places) == list(hosts)[: len(places)]
    assert all(places[host] == hosts[host] for host in list(places)[:-1])
    assert all(places.values())


def test_this_machine_comes_first_and_a_host_that_ssh_does_not_reach_is_left_out() -> None:
    hosts = {"no-such-host.invalid": 3, "localhost": 2, "127.0.0.1": 1}
    assert list(reachable(hosts).items()) == [("localhost", 2), ("127.0.0.1", 1)]


def test_hosts_say_how_many_workers_there_are_unless_that_is_said() -> None:
    hosts = LaunchConfig(hosts="a:2,b:3,c")
    assert hosts.num_workers(WorkersConfig()) == 6
    assert hosts.num_workers(WorkersConfig(workers=4)) == 4
    assert LaunchConfig().num_workers(WorkersConfig(workers=4)) == 4
    assert LaunchConfig().num_workers(WorkersConfig()) == 1


def test_more_workers_than_the_hosts_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="--workers is 4, but --hosts a:2,b:1 allows only 3"):
        LaunchConfig(hosts="a:2,b:1").num_workers(WorkersConfig(workers=4))


@pytest.mark.parametrize(
    ("options", "config", "is_asked_for"),
    [
        (LaunchConfig(), WorkersConfig(), False),
        (LaunchConfig(hosts="a"), WorkersConfig(), True),
        (LaunchConfig(hosts="a,b"), WorkersConfig(), True),
        (LaunchConfig(), WorkersConfig(workers=2), True),
        (LaunchConfig(), WorkersConfig(min_workers=1, max_workers=1), True),
    ],
)
def test_single_local_worker_trains_in_this_process(
    options: LaunchConfig, config: WorkersConfig, is_asked_for: bool
) -> None:
    assert options.is_asked_for(config) is is_asked_for


def test_workers_run_here_unless_hosts_are_named(tmp_path: Path) -> None:
    config = WorkersConfig(workers=2, min_workers=1, max_workers=4)
    assert LaunchConfig().find_hosts(WorkersConfig(workers=2)) == {"localhost": 2}
    assert LaunchConfig().find_hosts(config) == {"localhost": 4}
    assert LaunchConfig(hosts="a:2,b").find_hosts(config) == {"a": 2, "b": 1}
    hosts = script(tmp_path / "hosts.sh", "echo c:3")
    assert LaunchConfig(host_discovery_script=str(hosts)).find_hosts(config) == {"c": 3}


def test_script_that_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="--min-workers and --max-workers"):
        LaunchConfig(host_discovery_script="hosts.sh").is_asked_for(WorkersConfig(workers=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads is -1"),
        ({"hosts": "a", "host_discovery_script": "hosts.sh"}, "Pass only one of them"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LaunchConfig(**options)


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


def test_generation_at_its_maximum_continues_when_hosts_join() -> None:
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
    with pytest.raises(RanklineError, match="after 0 s, reachable hosts can run only 1 of the 2 required workers"):
        run.run(2)


def test_mpi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mpi cannot be combined with --max-workers"):
        ElasticRun(["true"], TWO, LaunchConfig(mpi=True), tmp_path, SILENT)
