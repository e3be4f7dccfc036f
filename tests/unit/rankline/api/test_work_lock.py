"""Two commands in one folder: the second ends with an error, and nobody exports the other's model."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankline.api import pipeline
from rankline.api.data_source import SourceConfig
from rankline.api.work_lock import working_in
from rankline.recipes import recipe_named
from rankline.recipes.workspace import Workspace
from rankline.workflows.core.errors import ArtifactError

_HOLDING = """
import sys
from pathlib import Path
from rankline.api.work_lock import working_in

with working_in(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_command(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", _HOLDING, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield process
        process.stdin.close()


def stop(*_: Any, **__: Any) -> None:
    raise AssertionError("the command went on")


STAGES: Any = SimpleNamespace(stage=stop)
"""A display that no command may reach."""


def test_each_writing_command_is_refused_while_another_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, workspace = recipe_named("movielens"), Workspace(recipe="movielens")
    monkeypatch.setattr(pipeline, "check_store", lambda _: None)
    monkeypatch.setattr(pipeline, "require", lambda *_, **__: None)
    prepared: Any = SimpleNamespace(inputs=())
    source = SourceConfig()
    commands: dict[str, Any] = {
        "prepare": lambda: pipeline.prepare(recipe, source, workspace, STAGES),
        "train": lambda: pipeline.train(recipe, prepared, workspace, STAGES),
        "run": lambda: pipeline.run(recipe, source, workspace, STAGES, num_seeds=1, batch_sizes=[1]),
    }
    with other_command(Path("work/movielens")):
        for command in commands.values():
            with pytest.raises(ArtifactError) as raised:
                command()
            assert str(raised.value) == (
                "another rankline command is working in work/movielens. Wait for it, or pass another --work-dir."
            )
        other_worker: Any = SimpleNamespace(rank=1)  # the first worker holds the lock for all
        with pytest.raises(AssertionError, match="went on"):
            pipeline.train(recipe, prepared, workspace, STAGES, world=other_worker)
    with pytest.raises(AssertionError, match="went on"):
        commands["run"]()
    assert not Path("work/movielens").exists()


def test_command_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with other_command(tmp_path) as process:
        with pytest.raises(ArtifactError, match="another rankline command"), working_in(tmp_path):
            pass
        process.kill()
        process.wait()
        with working_in(tmp_path):
            assert tmp_path.is_dir()


def test_stages_of_one_run_do_not_refuse_each_other_but_threads_do(tmp_path: Path) -> None:
    def work() -> None:
        with working_in(tmp_path):
            pass

    with working_in(tmp_path), ThreadPoolExecutor(1) as threads:
        work()
        with pytest.raises(ArtifactError, match="another rankline command"):
            threads.submit(work).result()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


def test_folder_is_left_as_the_command_left_it(tmp_path: Path) -> None:
    with working_in(tmp_path / "work" / "shop"):
        (tmp_path / "work" / "shop" / "prepared").mkdir()
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["shop", "prepared"]
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        with working_in(tmp_path / name):
            assert (tmp_path / name).is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"work", "empty"}


def test_file_system_without_locks_is_used_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with working_in(tmp_path):
        assert tmp_path.is_dir()
