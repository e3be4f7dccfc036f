from pathlib import Path
from typing import Any

import pytest

from rankline.launch.config import LaunchConfig
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import ConfigError


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


def test_an_elastic_run_starts_with_as_many_as_the_hosts_take_and_the_run_wants() -> None:
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


def test_a_script_that_nobody_would_ask_is_refused() -> None:
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
