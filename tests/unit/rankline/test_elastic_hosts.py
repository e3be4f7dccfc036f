from pathlib import Path

import pytest

from rankline.elastic_hosts import FixedHosts, HostScript
from workflows.errors import ConfigError


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_hosts_have_room_for_one_worker_unless_they_say_so() -> None:
    assert FixedHosts.parse("a:2, b,10.0.0.1:12").find() == {"a": 2, "b": 1, "10.0.0.1": 12}


@pytest.mark.parametrize("text", ["", "a:0", "a:x", ":2", "a:1,a:2", "a:1:2"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME:NUMBER, each name once"):
        FixedHosts.parse(text)


def test_a_script_is_asked_again_each_time(tmp_path: Path) -> None:
    hosts = HostScript(script(tmp_path / "hosts", 'cat "$(dirname "$0")/list"'))
    for text, places in (("a:2\nb\n", {"a": 2, "b": 1}), ("b\n", {"b": 1}), ("", {})):
        (tmp_path / "list").write_text(text)
        assert hosts.find() == places


def test_a_script_that_fails_or_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not say where workers may be.*exit status 3"):
        HostScript(script(tmp_path / "broken", "exit 3")).find()
    (tmp_path / "notes.txt").write_text("a:2")
    with pytest.raises(ConfigError, match=r"notes\.txt is not a program"):
        HostScript(tmp_path / "notes.txt")
