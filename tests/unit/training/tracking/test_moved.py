"""A work directory that was copied: what is new goes to the copy, and what is old is found there."""

import re
import shutil
from pathlib import Path

import mlflow
import pytest

from rankline.training.tracking import TrackingConfig, tracked_run
from rankline.training.tracking import upload as delivery
from rankline.training.tracking.journal import Journal
from rankline.workflows.storage.artifacts import sha256_of
from tests.unit.rankline.registry.test_mlflow_registry import files_of_at_most


def record(directory: Path, text: str) -> str:
    file = directory.parent / "note.txt"
    file.write_text(text)
    with tracked_run(TrackingConfig(directory=directory, experiment="shop")) as run:
        run.log_artifact(file)
    return run.run_id


def contents(directory: Path) -> dict[str, str]:
    return {str(path): sha256_of(path) for path in directory.rglob("*") if path.is_file()}


def read(directory: Path, run_id: str, to: Path) -> str:
    client = delivery.client_of(TrackingConfig(directory=directory, experiment="shop").uri)
    to.mkdir()
    return Path(client.download_artifacts(run_id, "note.txt", str(to))).read_text()


def test_a_copied_work_directory_is_a_store_of_its_own(tmp_path: Path) -> None:
    original, copy = tmp_path / "a" / "work", tmp_path / "b" / "work"
    original.mkdir(parents=True)
    first = record(original, "first")
    journal = Journal.new(TrackingConfig(directory=original, experiment="shop").journals)
    journal.append("open", config={"experiment": "shop"}, tags={}, start_ms=1, resumed="")
    journal.append("end", status="FINISHED", ms=2)
    journal.close()
    shutil.copytree(original.parent, copy.parent)
    before = contents(original)
    second = record(copy, "second")
    (left,) = delivery.deliver_left(copy / "tracking")
    assert (left.failure, left.uri) == ("", f"sqlite:///{copy / 'mlflow.db'}")
    shutil.move(original.parent, tmp_path / "aside")
    assert read(copy, first, tmp_path / "1") == "first"
    assert read(copy, second, tmp_path / "2") == "second"
    shutil.move(tmp_path / "aside", original.parent)
    assert contents(original) == before
    found = mlflow.MlflowClient(f"sqlite:///{original / 'mlflow.db'}").search_runs(["1"])
    assert [run.info.run_id for run in found] == [first]


def test_a_full_disk_does_not_end_the_thread_that_delivers(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    one = delivery.Delivery(journal)
    with files_of_at_most(0):
        one.note_failure(OSError("No space left on device"))
    journal.close()
    assert not (journal.directory / "delivered").exists()


@pytest.mark.parametrize("server", ["http://u:s3cret@host", "https://token@host/mlflow"])
def test_a_password_is_not_kept(tmp_path: Path, server: str) -> None:
    with pytest.raises(delivery.ConfigError, match="was given with a password, which would be saved"):
        TrackingConfig(directory=tmp_path, experiment="shop", server=server)
    kept_earlier = TrackingConfig.from_dict({"experiment": "shop", "server": server, "directory": "/gone"}, tmp_path)
    assert kept_earlier.uri == re.sub("//.*@", "//", server)
