"""Hosts of a run: their list, their script, how many workers they take."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.config import LaunchConfig, discover_hosts, first_places, parse_hosts, reachable
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_hosts_have_room_for_one_worker_unless_they_say_so() -> None:
    assert parse_hosts(["a:2", " b", "10.0.0.1:12"]) == {"a": 2, "b": 1, "10.0.0.1": 12}


@pytest.mark.parametrize(
    "text", ["", "a:0", "a:x", "a:two", ":2", "a:1,a:2", "a:1:2", "-oProxyCommand=id", "a;id", "$(id)", "a b"]
)
def test_text_that_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME:NUMBER, each name once"):
        parse_hosts(text.split(","))


def test_script_is_asked_again_each_time(tmp_path: Path) -> None:
    hosts = script(tmp_path / "hosts", 'cat "$(dirname "$0")/list"')
    for text, places in (("a:2\nb\n", {"a": 2, "b": 1}), ("b\n", {"b": 1}), ("", {})):
        (tmp_path / "list").write_text(text)
        assert discover_hosts(hosts) == places


def test_script_that_fails_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="broken failed: .*exit status 3.*prints a line HOST:NUMBER"):
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
    with pytest.raises(ConfigError, match="--workers is 4, and --hosts a:2,b:1 takes 3"):
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
def test_one_process_is_enough_for_one_worker_here_that_nothing_replaces(
    options: LaunchConfig, config: WorkersConfig, is_asked_for: bool
) -> None:
    assert options.is_asked_for(config) is is_asked_for


def test_elastic_run_starts_with_as_many_as_the_hosts_take_and_the_run_wants() -> None:
    config = WorkersConfig(min_workers=1, max_workers=4)
    assert LaunchConfig(hosts="a:4,b:4").num_workers(config) == 4
    assert LaunchConfig(hosts="a,b").num_workers(config) == 2


def test_workers_run_here_unless_hosts_are_named(tmp_path: Path) -> None:
    config = WorkersConfig(workers=2, min_workers=1, max_workers=4)
    assert LaunchConfig().find_hosts(WorkersConfig(workers=2)) == {"localhost": 2}
    assert LaunchConfig().find_hosts(config) == {"localhost": 4}
    assert LaunchConfig(hosts="a:2,b").find_hosts(config) == {"a": 2, "b": 1}
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho c:3\n")
    script.chmod(0o755)
    assert LaunchConfig(host_discovery_script=str(script)).find_hosts(config) == {"c": 3}


def test_script_that_nobody_would_ask_is_refused() -> None:
    with pytest.raises(ConfigError, match="--min-workers and --max-workers"):
        LaunchConfig(host_discovery_script="hosts.sh").is_asked_for(WorkersConfig(workers=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": "a:0"}, "is not a host"),
        ({"threads": -1}, "threads is -1"),
        ({"hosts": "a", "host_discovery_script": "hosts.sh"}, "Give one of them"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LaunchConfig(**options)
