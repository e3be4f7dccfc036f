"""What an elastic run does between generations: real horovodrun and kill -9, workers that learn nothing."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rankline.launch.config import LaunchConfig
from rankline.launch.elastic import ElasticRun
from rankline.training.distributed.config import WorkersConfig
from rankline.workflows.core.errors import RanklineError
from rankline.workflows.core.progress import SILENT

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")

_TWO = WorkersConfig(workers=2, min_workers=1, max_workers=2)
# A worker that learns nothing. It appends to a file of its rank what it knows of its generation, and does what the
# arguments say of the number of the generation: nothing, which is to make the model, or something else.
_TOY = """
import json, os, signal, sys, time
from pathlib import Path
from rankline.launch.worker import Worker, report
from rankline.training.run.checkpoint import Generation

directory, *actions = sys.argv[1:]
worker, generation = Worker.from_environment(os.environ), Generation.from_environment(os.environ)
action = actions[generation.number] if generation.number < len(actions) else ""
seen = {"size": int(os.environ["HOROVOD_SIZE"]), "generation": generation.number, "run_id": generation.run_id,
        "has_checkpoint": generation.has_checkpoint, "cause": generation.cause}
with Path(directory, f"seen-{worker.rank}").open("a") as file:
    file.write(json.dumps(seen) + "\\n")
with worker.at_work():
    if worker.rank == 0:
        report(run_id="the run")
    if action == "kill" and worker.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "raise" and worker.rank == 0:
        raise ValueError("three is no four")
    if action == "grow" and worker.rank == 0:
        Path(directory, "hosts").write_text("")
        time.sleep(2.5)
        Path(directory, "hosts").write_text("localhost:1\\n127.0.0.1:1\\n")
        for step in range(1_000_000):
            report(checkpoint_step=step)
            time.sleep(0.1)
    if action == "shrink" and worker.rank == 0:
        Path(directory, "hosts").write_text("localhost:1\\n")
    if action:
        time.sleep(600)
    if worker.rank == 0:
        report(model={"path": "model", "run_id": "the run", "tracking_uri": "sqlite://"})
"""


def test_generation_knows_of_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    of_a_killed_launcher = tmp_path / "rankline-workers-1-0"
    of_a_killed_launcher.mkdir()
    os.utime(of_a_killed_launcher, (0, 0))
    model = _toy(tmp_path, "kill")
    assert not list(tmp_path.glob("rankline-workers-*"))
    assert model["run_id"] == "the run"
    first, second = _seen(tmp_path, rank=0)
    assert first == {"size": 2, "generation": 0, "run_id": None, "has_checkpoint": False, "cause": ""}
    assert second["cause"].startswith("worker 0 was killed by SIGKILL")
    assert second | {"cause": ""} == first | {"generation": 1, "run_id": "the run"}


def test_hosts_join_at_a_checkpoint_and_leave_at_once_and_an_empty_list_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o755)
    options = LaunchConfig(
        host_discovery_script=str(script), network_interface="eth0"
    )  # not for workers of one machine
    _toy(tmp_path, "grow", "shrink", num_workers=1, options=options)
    seen = _seen(tmp_path, rank=0)
    assert [(generation["size"], generation["cause"]) for generation in seen] == [
        (1, ""),
        (2, "more hosts joined."),
        (1, "127.0.0.1 left the list of hosts."),
    ]
    assert [generation["has_checkpoint"] for generation in seen] == [False, True, True]


def test_workers_that_are_lost_again_and_again_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        RanklineError, match="workers were lost 2 times in a row before a new checkpoint was saved.*SIGKILL"
    ):
        _toy(tmp_path, *["kill"] * 9, max_failures=2)
    assert len(_seen(tmp_path, rank=0)) == 2


def _toy(
    directory: Path, *actions: str, num_workers: int = 2, options: LaunchConfig | None = None, max_failures: int = 5
) -> "dict[str, Any]":
    command = [sys.executable, "-c", _TOY, str(directory), *actions]
    run = ElasticRun(command, _TWO, options or LaunchConfig(), directory, SILENT, max_failures=max_failures)
    return dict(run.run(num_workers))


def _seen(directory: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / f"seen-{rank}").read_text().splitlines()]
