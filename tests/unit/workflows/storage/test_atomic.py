"""What is on the disk when the power fails, and what a process that was killed leaves."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankline.workflows.storage.artifacts import load_manifest, publish, write_whole
from rankline.workflows.storage.atomic import remove, staging_for
from tests.harness.process.disk_calls import DiskCalls


def fill(target: Path) -> None:
    with publish(target, "thing") as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file.txt").write_text("one")


def test_an_artifact_is_on_the_disk_before_its_name_and_its_name_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "a")
    calls = DiskCalls(monkeypatch)
    fill(tmp_path / "a")
    staging = calls.made[calls.index("rename")][1]
    names = ("", "/sub", "/sub/file.txt", "/manifest.json")
    assert calls.synced(0, calls.index("rename")) == {f"{staging}{name}" for name in names}
    assert calls.synced(calls.index("rename"), calls.index("remove")) == {str(tmp_path)}


def test_a_file_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DiskCalls(monkeypatch)
    write_whole(tmp_path / "a", b"one")
    staging = calls.made[calls.index("rename")][1]
    assert calls.made == [("sync", staging), ("rename", staging), ("sync", str(tmp_path))]


_PUBLISHER = """
import os, signal, sys
from pathlib import Path
from rankline.workflows.storage.artifacts import publish
with publish(Path(sys.argv[1]), "thing") as directory:
    (directory / "large").write_bytes(bytes(1000))
    if len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_publisher_left_goes_at_the_next_publish_but_not_what_another_one_fills(tmp_path: Path) -> None:
    target = tmp_path / "[a]"  # a name that a pattern would take for another
    killed = subprocess.run([sys.executable, "-c", _PUBLISHER, target, "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with subprocess.Popen(
        [sys.executable, "-c", _PUBLISHER, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1  # its own
        fill(target)
        assert len(list(tmp_path.iterdir())) == 2
        other.stdin.close()
    assert other.returncode == 0
    assert set(load_manifest(target, "thing").files) == {"large"}
    assert list(tmp_path.iterdir()) == [target]


def test_a_removal_that_is_cut_off_leaves_nothing_that_anybody_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with staging_for(tmp_path / "a") as staging:
        assert list(tmp_path.iterdir()) == [staging]
