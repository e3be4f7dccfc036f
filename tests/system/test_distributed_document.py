"""Every command of docs/distributed.md that needs no registry, no cluster and no MPI: on one host, with short data."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from tests.support.command_line import commands, started, typed
from tests.support.tiny_ensembles import publish_tiny
from workflows.datasets.criteo_generator import generate_criteo

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
NOT_HERE = ("MPI=1", "docker", "kustomize", "kubectl", "make test")
COMMANDS = [
    line.partition(" # ")[0].strip() for line in commands(DOCUMENT) if not any(word in line for word in NOT_HERE)
]
HERE = {
    "a:4,b:4": "localhost:2",
    "-np 8": "-np 2",
    "--workers 4": "--workers 2",
    "--min-workers 2": "--min-workers 1",
    "--max-workers 4": "--max-workers 2",
    "--max-workers 8": "--max-workers 2",
    "eth0": "lo",
    "local:8": "local:2",
    "/shared/": "",
    "--watch": "--watch --port 0",
}
"""What stands for what in the document's commands."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short data, an ensemble to serve, and the script that says where workers may be."""
    path = tmp_path_factory.mktemp("distributed")
    generate_criteo(path / "criteo", num_rows=1_000, seed=2, cardinality_scale=0.001)
    (path / "hosts.sh").write_text("#!/bin/sh\necho localhost:2\n", encoding="utf-8")
    (path / "hosts.sh").chmod(0o755)
    typed("rankline prepare movielens --rows 4000", path)
    publish_tiny(path / "model_repository" / "movielens", 10)
    return path


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_the_document_shows_commands_and_each_word_of_them_that_is_replaced_here() -> None:
    assert len(COMMANDS) > 8
    for word in HERE:
        assert any(word in command for command in COMMANDS), word


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_of_the_document_works(command: str, directory: Path, request: pytest.FixtureRequest) -> None:
    for there, here in HERE.items():
        command = command.replace(there, here)
    if "tcp://scheduler:8786" in command:
        command = command.replace("tcp://scheduler:8786", request.getfixturevalue("scheduler"))
    process = started(f"exec {command}", ROOT if command.startswith("make") else directory)
    if command.startswith("rankline serve"):
        assert process.stdout is not None
        assert any(line.startswith("Ctrl-C stops it") for line in process.stdout)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 0, output
