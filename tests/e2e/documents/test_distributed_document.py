"""Every command of docs/guide/distributed.md that needs no registry, cluster or MPI: on one host, with short data.

What others look at closely is not run again here, see `tests/harness/commands/distributed_document.py`.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from rankline.workflows.data.criteo.generator import generate_criteo
from tests.harness.commands.command_line import started, typed
from tests.harness.commands.distributed_document import COMMANDS, HERE, HOROVOD, LOOKED_AT, ROOT, here

pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short data."""
    path = tmp_path_factory.mktemp("distributed")
    generate_criteo(path / "criteo", num_rows=1_000, seed=2, cardinality_scale=0.001)
    typed("rankline prepare movielens --rows 4000", path)
    return path


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_document_shows_commands_and_each_word_of_them_that_is_replaced_here() -> None:
    assert len(COMMANDS) > 8
    for word in HERE:
        assert any(word in command for command in COMMANDS), word


def test_make_horovod_runs_what_built_it_here() -> None:
    """`make test-all` runs the script before the tests, and building takes minutes."""
    shown = subprocess.run([*HOROVOD.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines() if "horovod" in line] == ["scripts/horovod.sh"]


@pytest.mark.parametrize("command", [command for command in dict.fromkeys(COMMANDS) if command not in LOOKED_AT])
def test_command_of_the_document_works(command: str, directory: Path, request: pytest.FixtureRequest) -> None:
    command = here(command)
    if "tcp://scheduler:8786" in command:
        command = command.replace("tcp://scheduler:8786", request.getfixturevalue("scheduler"))
    process = started(f"exec {command}", directory)
    output, _ = process.communicate()
    assert process.returncode == 0, output
