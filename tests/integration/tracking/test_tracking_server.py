"""MLflow servers: slow, gone for a while or for good; and as the registry of two machines that share nothing else."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from rankline.registry.activation import make_active, register
from rankline.registry.alias_follower import Alias, AliasFollower
from rankline.registry.mlflow_registry import Registry
from rankline.runs.mlflow_ui import serve_pages
from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import ExportedEnsemble, active_version, before
from rankline.serving.server.ports import free_port
from rankline.training.tracking import RunLog, TrackingConfig, tracked_run
from rankline.training.tracking.journal import left_in
from rankline.training.tracking.upload import OWN_ID, deliver_left
from rankline.workflows.core.errors import ArtifactError
from tests.factories.ensembles import NAME, publish_tiny
from tests.factories.specs import scalar_spec
from tests.harness.commands.command_line import rankline
from tests.harness.network.relay import relay_to
from tests.harness.process.waiting import wait_until

pytestmark = pytest.mark.slow

STEPS = range(1, 21)
SPEC = scalar_spec([(10, 4)], 1)


class Server:
    """An MLflow server that can be stopped and started again at the same address."""

    def __init__(self, directory: Path) -> None:
        self._store = f"sqlite:///{directory / 'server.db'}"
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._running = ExitStack()

    def start(self) -> None:
        self._running.enter_context(serve_pages(self._store, self._port))

    def stop(self) -> None:
        self._running.close()

    def runs(self, experiment: str) -> list[Run]:
        """What is in its store, deleted runs left out; read past the server."""
        client = MlflowClient(tracking_uri=self._store)
        found = client.get_experiment_by_name(experiment)
        return list(client.search_runs([found.experiment_id])) if found else []

    def losses(self, run: Run) -> list[tuple[int, float]]:
        """Each point of a curve, as often as it is there."""
        history = MlflowClient(tracking_uri=self._store).get_metric_history(run.info.run_id, "train_loss")
        return [(point.step, point.value) for point in history]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)  # where MLflow puts the artifacts of a store in a file
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        made = Server(directory)
        made.start()
        yield made
        made.stop()


def log_all(log: RunLog, directory: Path) -> None:
    """Some of each kind."""
    log.log_params({"epochs": 2, "model": "mlp"})
    log.note("20 rows.")
    log.set_tags({"data": "abc"})
    log.log_dataset("valid", directory, digest="f" * 64, num_rows=12)
    for step in STEPS:
        log.log_metrics({"train_loss": 1 / step}, step)
    (directory / "weights.txt").write_text("1 2 3\n")
    (directory / "pictures").mkdir(exist_ok=True)
    (directory / "pictures" / "one.txt").write_text("a picture\n")
    log.log_artifact(directory / "pictures")
    example = pd.DataFrame({feature.name: [1] for feature in (*SPEC.categorical, *SPEC.continuous)})
    log.log_model(
        directory / "weights.txt", SPEC, example, loader_module="tests.harness.network.relay", packages=("numpy",)
    )
    log.log_metrics({"model/valid_auc": 0.75}, 2, of_model=True)


def check_all(server: Server, experiment: str) -> Run:
    """All of it is there, once; the run."""
    (run,) = server.runs(experiment)
    client = MlflowClient(tracking_uri=server.uri)
    run = client.get_run(run.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"epochs": "2", "model": "mlp"}
    assert (run.data.tags["data"], run.data.tags["mlflow.note.content"]) == ("abc", "20 rows.")
    assert server.losses(run) == [(step, 1 / step) for step in STEPS]
    assert len(run.inputs.dataset_inputs) == 1
    assert [file.path for file in client.list_artifacts(run.info.run_id, "pictures")] == ["pictures/one.txt"]
    (model,) = client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'")
    assert (model.name, str(model.status), model.params) == ("model", "READY", run.data.params)
    assert [(one.key, one.value, one.dataset_digest) for one in model.metrics] == [("model/valid_auc", 0.75, "f" * 36)]
    assert [one.model_id for one in run.outputs.model_outputs] == [model.model_id]
    return run


def test_restarted_server_gets_the_rest_of_a_run(server: Server, tmp_path: Path) -> None:
    config = TrackingConfig(directory=tmp_path, experiment="killed", server=server.uri)
    with tracked_run(config) as log:
        log.log_metrics({"before": 1.0}, 1)
        wait_until(lambda: any("before" in run.data.metrics for run in server.runs("killed")))
        server.stop()
        log_all(log, tmp_path)
        wait_until(lambda: left_in(config.journals)[0].delivered.failure != "")
        server.start()
        wait_until(lambda: any("model/valid_auc" in run.data.metrics for run in server.runs("killed")))
    wait_until(lambda: bool(list(deliver_left(config.journals))) or not left_in(config.journals))  # if it was too busy
    assert left_in(config.journals) == []
    assert check_all(server, "killed").info.run_id == log.run_id


def test_run_without_a_server_is_delivered_later_once(server: Server, tmp_path: Path) -> None:
    config = TrackingConfig(directory=tmp_path / "work", experiment="later", server=server.uri)
    server.stop()
    with tracked_run(config) as log:
        log_all(log, tmp_path)
    (left,) = left_in(config.journals)
    assert log.run_id == left.directory.name
    assert left.delivered.failure
    refused = rankline("sync", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Nothing is lost; run rankline sync to deliver it." in " ".join(refused.stderr.split())
    server.start()
    shutil.copytree(left.directory, again := tmp_path / "again" / left.directory.name)
    done = rankline("sync", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = check_all(server, "later")
    assert done.stdout == f"run {run.info.run_id} is in {server.uri}\n"
    assert run.data.tags[OWN_ID] == log.run_id
    (outcome,) = deliver_left(again.parent)
    assert (outcome.run_id, outcome.failure) == (run.info.run_id, "")
    check_all(server, "later")
    assert "nothing to deliver" in rankline("sync", cwd=tmp_path).stdout


def test_silent_server_does_not_delay_a_run(server: Server, tmp_path: Path) -> None:
    with relay_to(server.uri) as relay:
        relay.hold()
        config = TrackingConfig(directory=tmp_path / "work", experiment="slow", server=relay.uri)
        with tracked_run(config) as log:
            log_all(log, tmp_path)
        assert relay.answers == []
        assert [left.directory.name for left in left_in(config.journals)] == [log.run_id]
        relay.release()
        wait_until(lambda: bool(list(deliver_left(config.journals)) or not left_in(config.journals)))
    check_all(server, "slow")


def test_lost_answers_duplicate_nothing(server: Server, tmp_path: Path) -> None:
    with relay_to(server.uri) as relay:
        relay.lose_first("/runs/create", "/runs/log-batch", "/logged-models", "/runs/outputs", "/runs/set-tag")
        config = TrackingConfig(directory=tmp_path / "work", experiment="lost", server=relay.uri)
        with tracked_run(config) as log:
            log_all(log, tmp_path)
        wait_until(lambda: bool(list(deliver_left(config.journals))) and not left_in(config.journals))
        assert {path.rpartition("/")[2] for path in relay.lost} == {
            "create",
            "log-batch",
            "logged-models",
            "outputs",
            "set-tag",
        }
    check_all(server, "lost")


def test_registry_versions_go_through_a_server_and_a_rollback_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where the server puts artifacts
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    origin, path, events = tmp_path / "origin" / NAME, tmp_path / "elsewhere" / NAME, list[str]()
    with serve_pages(f"sqlite:///{tmp_path / 'server.db'}", 0) as (uri, _):
        client = MlflowClient(tracking_uri=uri)
        run_id = client.create_run(client.create_experiment(NAME)).info.run_id
        (tmp_path / "feature_spec.yaml").write_text("feature_spec: {}\n")
        client.log_artifact(run_id, str(tmp_path / "feature_spec.yaml"))
        client.set_terminated(run_id)
        register(publish_tiny(origin, 10, run=(run_id, uri)), uri)
        follower = AliasFollower(Alias(NAME, CHAMPION), path, uri, events.append)
        follower.follow()
        make_active(publish_tiny(origin, 20, run=(run_id, uri), promote=False))
        follower.step()
        for number in (1, 2):
            ExportedEnsemble.load(path, number).check_files()
        assert active_version(path, NAME) == active_version(origin, NAME) == 2
        registered = Registry(client).at(NAME, CHAMPION)
        assert registered is not None
        assert client.get_model_version(NAME, str(registered.number)).run_id == run_id

    with pytest.raises(ArtifactError, match=f"{NAME} version 1 was not registered, in {uri}"):
        make_active(ExportedEnsemble.load(origin, 1))
    assert active_version(origin, NAME) == 2
    make_active(before(origin), is_urgent=True)
    assert active_version(origin, NAME) == 1
    said = capfd.readouterr().err
    assert "The alias was not moved" in said
    assert "Waiting up to" not in said  # MLflow's own messages
    for _ in range(2):
        follower.step()
    assert active_version(path, NAME) == 2
    assert [event for event in events if "cannot be followed" in event][-1:] == events[-1:]  # told, and once
    assert sum("cannot be followed" in event for event in events) == 1
