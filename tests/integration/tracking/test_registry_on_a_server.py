"""The registry of an MLflow server with an artifact store of its own, from two machines that share nothing else."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from rankline.registry.activation import make_active, register
from rankline.registry.alias_follower import Alias, AliasFollower
from rankline.registry.mlflow_registry import Registry
from rankline.runs.mlflow_ui import serve_pages
from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import ExportedEnsemble, active_version, before
from rankline.workflows.core.errors import ArtifactError
from tests.factories.ensembles import NAME, publish_tiny


def test_versions_go_through_a_server_and_a_rollback_does_without_it(
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
    assert "The alias stays where it is" in capfd.readouterr().err
    for _ in range(2):
        follower.step()
    assert active_version(path, NAME) == 2
    assert [event for event in events if "is not followed" in event][-1:] == events[-1:]  # told, and once
    assert sum("is not followed" in event for event in events) == 1
