"""What a shell offers behind Tab, asked as bash asks, in a directory of work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.recipes import available
from rankline.serving.engines import engines
from tests.factories.ensembles import NAME, publish_tiny
from tests.unit.rankline.conftest import Store

MOVIELENS = [name for name in available().recipes if name.startswith("movielens")]


@pytest.fixture
def place(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an export under a name of its own, in two versions, and the store of runs as work."""
    for offset in (10, 20):
        publish_tiny(tmp_path / "model_repository" / NAME, offset)
    (tmp_path / "model_repository" / "broken").mkdir()
    (tmp_path / "work").symlink_to(store.root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(typed: str) -> list[str]:
    """What follows a line that ends at the cursor."""
    words = typed.split(" ")
    variables = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_RANKLINE_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, [], env=variables, prog_name="rankline")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rankline exp", ["export"]),
        ("rankline train movie", MOVIELENS),
        ("rankline predict movie", MOVIELENS),
        ("rankline serve t", [NAME]),
        (f"rankline promote {NAME} --to ", ["1", "2"]),
        (f"rankline rollback {NAME} --to 2", ["2"]),
        (f"rankline register {NAME} --version ", ["1", "2"]),
        ("rankline promote nobody --to ", []),
        (f"rankline compare {NAME}@1 ti", [f"{NAME}@1", f"{NAME}@2"]),
        ("rankline train movielens --checkpoint-e", ["--checkpoint-every"]),
        ("rankline train nobody --ep", []),
        ("rankline train movielens --model dl", ["dlrm"]),
        ("rankline export movielens --backend n", ["native"]),
        ("rankline tune movielens --engine ", list(engines())),
    ],
)
def test_names_are_offered(place: Path, typed: str, expected: list[str]) -> None:
    assert offered(typed) == expected


def test_runs_are_offered_by_as_many_digits_as_are_typed(place: Path, store: Store) -> None:
    run_id = store.run()
    assert run_id[:8] in offered("rankline compare ")
    assert offered(f"rankline compare {run_id[:12]}") == [run_id]
    assert not set(offered("rankline compare --work-dir elsewhere ")) & {run_id[:8]}


@pytest.mark.parametrize("typed", ["rankline compare 0", "rankline runs --work-dir work x", "rankline promote --to "])
def test_directory_that_cannot_be_read_offers_nothing(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert offered(typed) == []
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mlflow.db").write_text("no database")
    (tmp_path / "model_repository").write_text("no directory")
    assert offered(typed) == []


def test_bash_takes_what_is_offered_and_nothing_heavy_is_imported(place: Path) -> None:
    program = (
        "import atexit, sys\n"
        "heavy = {'mlflow', 'tensorflow', 'torch', 'nvtabular', 'pandas'}\n"
        "atexit.register(lambda: print(*heavy & set(sys.modules), file=sys.stderr, end=''))\n"
        "from rankline.cli.main import main\n"
        "main()"
    )
    command = place / "rankline"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'rankline'\n{program}\n")
    command.chmod(0o755)
    typed = (
        'eval "$(_RANKLINE_COMPLETE=source_bash rankline)"\n'
        f'COMP_WORDS=(rankline compare {NAME}@1 {NAME}@2 ""); COMP_CWORD=4\n'
        "_rankline_completion rankline\n"
        'echo "${COMPREPLY[@]}"'
    )
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", typed], env={**os.environ, "PATH": path}, text=True, capture_output=True)
    assert done.stderr == ""
    assert done.stdout.split()[-2:] == [f"{NAME}@1", f"{NAME}@2"]
