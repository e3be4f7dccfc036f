import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app


def test_the_version_needs_no_verb() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"rankline {version('rankline')}\n")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "rankline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rankline {version('rankline')}\n"


@pytest.mark.parametrize("size", ["OMPI_COMM_WORLD_SIZE", "HOROVOD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"])
@pytest.mark.parametrize("verb", ["sim", "run"])
def test_one_of_several_processes_refuses_what_each_would_do_alone(size: str, verb: str) -> None:
    done = CliRunner().invoke(app, [verb], env={size: "3"})
    assert done.exit_code == 1
    assert f"rankline {verb} was started as one of 3 processes" in done.output
    assert done.output.count("\n") == 1


def test_a_launcher_may_start_one_process() -> None:
    assert (
        CliRunner()
        .invoke(app, ["sim"], env={"OMPI_COMM_WORLD_SIZE": "1"})
        .output.startswith("Error: --dataset_dir is missing")
    )


def test_workers_of_a_launcher_that_they_cannot_find_each_other_by_are_refused() -> None:
    done = CliRunner().invoke(app, ["train", "movielens"], env={"PMI_SIZE": "3"})
    assert done.exit_code == 1
    assert "one of 3 processes of a launcher that is neither Open MPI's nor horovodrun" in done.output


def test_run_refuses_more_candidates_than_are_ranked_at_once_before_it_begins(tmp_path: Path) -> None:
    arguments = ["run", "amazon-sim", "--work-dir", str(tmp_path / "work"), "--batch-sizes", "32768"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert done.output.startswith("Error: batch size 32768 is larger than the model takes (16384)")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--slo", "p99=10", "slo is 'p99=10', expected one of p50"),
        ("--batch-sizes", "1,x", "--batch-sizes is '1,x'"),
        ("--arrivals", "missing.txt", "the trace missing.txt cannot be read"),
    ],
)
def test_bench_reads_its_options_before_anything_else(option: str, value: str, message: str) -> None:
    done = CliRunner().invoke(app, ["bench", "--repository", "no-such-repository", option, value])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {message}")


LEAVING = """
import atexit, sys

class Left:
    def __del__(self):
        print("the interpreter was taken down")

left = Left()
left.itself = left
atexit.register(print, "what was registered has run")
from rankline.cli.main import main
main()
"""


@pytest.mark.parametrize(("argument", "status"), [("--version", 0), ("--versoin", 2)])
def test_a_command_ends_without_taking_the_interpreter_down(argument: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING, argument], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stdout.splitlines()[-1] == "what was registered has run"
