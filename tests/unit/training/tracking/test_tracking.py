"""A work directory that was copied: what is new goes to the copy, and what is old is found there."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest

from rankline.training import tracking
from rankline.training.tracking import TrackingConfig, code_version, rankline_version, tracked_run
from rankline.training.tracking import upload as delivery
from rankline.training.tracking.journal import Journal
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.core.tracking_uri import file_of
from rankline.workflows.storage.artifacts import sha256_of
from tests.harness.process.disk import files_of_at_most
from tests.harness.process.waiting import wait_until


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the whole file: making one takes seconds."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def config(directory: Path) -> TrackingConfig:
    return TrackingConfig(directory=directory, experiment="movielens")


def client(config: TrackingConfig) -> mlflow.MlflowClient:
    return mlflow.MlflowClient(config.uri)


def test_incomplete_store_does_not_block_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = TrackingConfig(directory=tmp_path / "work", experiment="movielens").uri

    def is_killed(tracking_uri: str) -> None:
        file = file_of(tracking_uri)
        assert file is not None
        file.write_bytes(b"half of one")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(delivery, "MlflowClient", is_killed)
        delivery.client_of(uri)
    assert [one.name for one in delivery.client_of(uri).search_experiments()] == ["Default"]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["mlflow.db"]


def test_run_keeps_params_metrics_by_epoch_datasets_and_artifacts(config: TrackingConfig, tmp_path: Path) -> None:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "metadata.json").write_text("{}")
    uri_before, variable_before = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    with tracked_run(config) as run:
        run.log_params({"epochs": 2, "model": "mlp"})
        run.log_dataset("train", tmp_path, digest="f" * 64, num_rows=12)
        for epoch in (1, 2):
            run.log_metrics({"valid_auc": 0.5 + epoch / 10}, step=epoch)
        run.log_artifact(tmp_path / "workflow")
    assert mlflow.get_tracking_uri() == uri_before
    assert os.environ.get("MLFLOW_TRACKING_URI") == variable_before  # found there, it would be the next run's server
    stored = client(config).get_run(run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params == {"epochs": "2", "model": "mlp"}
    assert [(m.step, m.value) for m in client(config).get_metric_history(run.run_id, "valid_auc")] == [
        (1, 0.6),
        (2, 0.7),
    ]
    (dataset,) = (entry.dataset for entry in stored.inputs.dataset_inputs)
    assert (dataset.digest, dataset.profile) == ("f" * 36, '{"num_rows": 12}')
    assert (config.directory / "mlartifacts" / run.run_id / "artifacts" / "workflow" / "metadata.json").is_file()


@pytest.mark.parametrize(
    ("error", "status", "failure"), [(ValueError, "FAILED", "no more rows"), (KeyboardInterrupt, "KILLED", None)]
)
def test_run_that_breaks_says_so(
    config: TrackingConfig, error: type[BaseException], status: str, failure: str | None
) -> None:
    with pytest.raises(error), tracked_run(config) as run:
        raise error("no more rows.")
    found = client(config).get_run(run.run_id)
    assert (found.info.status, found.data.tags.get("failure")) == (status, failure)
    assert mlflow.active_run() is None


def test_system_metrics_are_sampled_during_a_long_run(config: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_LONG_S", 0.5)
    name = "system/cpu_utilization_percentage"
    with tracked_run(config) as run:
        wait_until(lambda: name in client(config).get_run(run.run_id).data.metrics)
    assert client(config).get_run(run.run_id).data.metrics[name] >= 0


def test_deleted_experiment_is_refused_with_the_remedy(directory: Path) -> None:
    config = TrackingConfig(directory=directory, experiment="gone")
    with tracked_run(config):
        pass
    client(config).delete_experiment(client(config).get_experiment_by_name("gone").experiment_id)
    with pytest.raises(ConfigError, match="mlflow experiments restore"), tracked_run(config):
        pass


def test_store_elsewhere_keeps_run_and_artifacts(
    config: TrackingConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where MLflow puts the artifacts of a store in a file
    elsewhere = replace(config, directory=tmp_path / "work", server=f"sqlite:///{tmp_path / 'elsewhere.db'}")
    (tmp_path / "note.txt").touch()
    with tracked_run(elsewhere) as run:
        run.log_artifact(tmp_path / "note.txt")
    assert elsewhere.uri == elsewhere.server
    assert client(elsewhere).get_run(run.run_id).info.status == "FINISHED"
    assert [file.path for file in client(elsewhere).list_artifacts(run.run_id)] == ["note.txt"]
    assert [path.relative_to(tmp_path) for path in (tmp_path / "work").rglob("*")] == [Path("work/tracking")]


def test_failed_run_resumes_under_its_own_name(config: TrackingConfig) -> None:
    named = replace(config, run_name="first")
    with pytest.raises(ValueError), tracked_run(named) as run:
        run.log_params({"epochs": 2})
        run.log_metrics({"valid_auc": 0.6}, step=1)
        raise ValueError
    assert not run.is_reopened
    with tracked_run(replace(config, run_name="second"), resumed_id=run.run_id) as again:
        assert client(config).get_run(run.run_id).info.status == "RUNNING"
        again.log_metrics({"valid_auc": 0.7}, step=2)
    assert again.is_reopened
    stored = client(config).get_run(run.run_id)
    assert (stored.info.status, stored.info.run_name, stored.data.params) == ("FINISHED", "first", {"epochs": "2"})
    assert [m.value for m in client(config).get_metric_history(run.run_id, "valid_auc")] == [0.6, 0.7]
    assert "mlflow.note.content" not in stored.data.tags


@pytest.mark.parametrize("is_deleted", [True, False])
def test_deleted_run_resumes_as_a_new_one_with_a_note(config: TrackingConfig, is_deleted: bool) -> None:
    gone = "0" * 32
    if is_deleted:
        with tracked_run(config) as run:
            gone = run.run_id
        client(config).delete_run(gone)
    with tracked_run(config, resumed_id=gone) as run:
        run.note("More to say.")
    assert run.run_id != gone
    assert not run.is_reopened
    note = client(config).get_run(run.run_id).data.tags["mlflow.note.content"]
    assert note == f"Continues run {gone}, which no longer exists. More to say."


def test_error_of_the_store_is_not_taken_for_a_run_that_is_gone(config: TrackingConfig) -> None:
    with pytest.raises(ArtifactError, match="Invalid value"), tracked_run(config, resumed_id="no id at all"):
        pass


def test_code_version_names_no_commit_of_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_GIT_S", 600.0)  # a busy machine takes its time to read the checkout
    expected = code_version()
    source = tmp_path / "site-packages" / "tracking" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    assert code_version() == expected  # whatever the working directory
    monkeypatch.setattr(tracking, "__file__", str(source))
    assert code_version() == f"rankline {rankline_version()}"


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


def test_copied_work_directory_is_a_store_of_its_own(tmp_path: Path) -> None:
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


def test_full_disk_does_not_end_the_thread_that_delivers(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path)
    one = delivery.Delivery(journal)
    with files_of_at_most(0):
        one.note_failure(OSError("No space left on device"))
    journal.close()
    assert not (journal.directory / "delivered").exists()


@pytest.mark.parametrize("server", ["http://u:s3cret@host", "https://token@host/mlflow"])
def test_password_is_not_kept(tmp_path: Path, server: str) -> None:
    with pytest.raises(delivery.ConfigError, match="contains a password, which would be saved"):
        TrackingConfig(directory=tmp_path, experiment="shop", server=server)
    kept_earlier = TrackingConfig.from_dict({"experiment": "shop", "server": server, "directory": "/gone"}, tmp_path)
    assert kept_earlier.uri == re.sub("//.*@", "//", server)
