from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankline.launch.hosts import discover_hosts, first_places, parse_hosts, reachable
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
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME:NUMBER, each name once"):
        parse_hosts(text.split(","))


def test_a_script_is_asked_again_each_time(tmp_path: Path) -> None:
    hosts = script(tmp_path / "hosts", 'cat "$(dirname "$0")/list"')
    for text, places in (("a:2\nb\n", {"a": 2, "b": 1}), ("b\n", {"b": 1}), ("", {})):
        (tmp_path / "list").write_text(text)
        assert discover_hosts(hosts) == places


def test_a_script_that_fails_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="broken failed: .*exit status 3.*prints a line HOST:NUMBER"):
        discover_hosts(script(tmp_path / "broken", "exit 3"))
    (tmp_path / "notes.txt").write_text("a:2")
    with pytest.raises(ConfigError, match=r"notes\.txt failed: .*Permission denied"):
        discover_hosts(tmp_path / "notes.txt")


@given(hosts=st.dictionaries(st.text(min_size=1), st.integers(1, 9)), number=st.integers(0, 40))
def test_the_first_hosts_are_filled_first(hosts: dict[str, int], number: int) -> None:
    places = first_places(hosts, number)
    assert sum(places.values()) == min(number, sum(hosts.values()))
    assert list(places) == list(hosts)[: len(places)]
    assert all(places[host] == hosts[host] for host in list(places)[:-1])
    assert all(places.values())


def test_this_machine_comes_first_and_a_host_that_ssh_does_not_reach_is_left_out() -> None:
    hosts = {"no-such-host.invalid": 3, "localhost": 2, "127.0.0.1": 1}
    assert list(reachable(hosts).items()) == [("localhost", 2), ("127.0.0.1", 1)]
