"""The command as a program: launchers, options that are read first, Ctrl-C, a full disk, and its end."""

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rankline.cli.main import _interrupt, app
from rankline.workflows.core.ctrl_c import STOPPING, ctrl_c_prints
from tests.factories.reports import report_of, result_of


def test_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "rankline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rankline {version('rankline')}\n"


@pytest.mark.parametrize(
    ("verb", "size"), [("sim", "OMPI_COMM_WORLD_SIZE"), ("sim", "PMI_SIZE"), ("run", "HOROVOD_SIZE")]
)
def test_verb_refuses_to_run_as_one_of_several_processes(size: str, verb: str) -> None:
    done = CliRunner().invoke(app, [verb], env={size: "3"})
    assert done.exit_code == 1
    assert f"rankline {verb} was started as one of 3 processes" in done.output
    assert done.output.count("\n") == 1


def test_verb_runs_as_the_one_process_of_a_launcher() -> None:
    assert (
        CliRunner()
        .invoke(app, ["sim"], env={"OMPI_COMM_WORLD_SIZE": "1"})
        .output.startswith("Error: --dataset_dir is missing")
    )


def test_train_refuses_a_launcher_that_is_not_known() -> None:
    done = CliRunner().invoke(app, ["train", "movielens"], env={"PMI_SIZE": "3"})
    assert done.exit_code == 1
    assert "one of 3 processes started by a launcher other than Open MPI or horovodrun" in done.output


def test_run_refuses_more_candidates_than_are_ranked_at_once_before_it_begins(tmp_path: Path) -> None:
    arguments = ["run", "amazon-sim", "--work-dir", str(tmp_path / "work"), "--batch-sizes", "32768"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert done.output.startswith("Error: batch size 32768 exceeds the model's limit (16384)")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--slo", "p99=10", "slo is 'p99=10', expected a percentile (p50"),
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


def test_command_ends_without_taking_the_interpreter_down() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING, "--versoin"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "what was registered has run"


IMPORTING = """
import sys

class Press:
    def find_spec(self, name, *_):
        if name == "rankline.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Press())
from rankline.__main__ import main
main()
"""


def test_ctrl_c_while_importing_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, _interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_second_ctrl_c_does_not_cut_the_clean_up_short() -> None:
    done = []

    def work() -> None:
        try:
            press()
        finally:
            press()
            try:
                raise ValueError("of the clean-up")
            except ValueError:
                press()
            done.append("clean")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["clean"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("handler")
def test_ctrl_c_that_a_finalizer_swallowed_is_made_good_by_the_next() -> None:
    class Finalized:
        def __del__(self) -> None:
            press()

    made = Finalized()
    del made  # Python prints what a finalizer raises, and goes on
    with pytest.raises(KeyboardInterrupt):
        press()


_IN_A_NEW_PROCESS = """
import signal, sys
from rankline.cli.main import _interrupt

before = set(sys.modules)
signal.signal(signal.SIGINT, _interrupt)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print(sorted(set(sys.modules) - before))
"""


def test_ctrl_c_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _IN_A_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "\nstopping; finished artifacts are kept.\n")


@pytest.mark.usefixtures("handler")
def test_ctrl_c_that_ends_only_a_part_of_the_work_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = "comparison stopped; the best of linear and lightgbm will be trained. Press Ctrl-C again to end."
    with pytest.raises(KeyboardInterrupt), ctrl_c_prints(text):
        press()
    with pytest.raises(KeyboardInterrupt):
        press()
    assert capsys.readouterr().err == f"\n{text}\n\n{STOPPING}\n"


def test_report_is_shown_and_saved_where_the_json_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config, manifest = SimpleNamespace(max_batch_size=10), SimpleNamespace(made_from={})
    ensemble = SimpleNamespace(model_config=config, manifest=manifest, tracking_uri="", run_id="")
    monkeypatch.setattr("rankline.serving.repository.ensemble.ExportedEnsemble.load", lambda *_: ensemble)
    monkeypatch.setattr("rankline.workflows.preprocess.prepared_data.PreparedData.load", lambda *_: None)
    monkeypatch.setattr("rankline.cli.bench._measure", lambda *_: SimpleNamespace(bench=report_of(result_of())))
    monkeypatch.setattr("rankline.cli.bench.busyness", str)
    monkeypatch.setattr("rankline.cli.bench.save_report", lambda *report: saved.append(report))
    monkeypatch.setattr("rankline.api.pipeline.write_json", no_space)
    done = CliRunner().invoke(app, ["bench", "--batch-sizes", "1", "--json", "out.json"])
    assert done.exit_code == 1
    assert "1 row: p50" in done.stdout
    assert "the disk is full" in done.stderr
    assert len(saved) == 1
