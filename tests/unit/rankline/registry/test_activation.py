import threading
from pathlib import Path

import pytest

from rankline.registry.activation import make_active, register, registry_uri
from rankline.registry.mlflow_registry import CANDIDATE, Registry
from rankline.registry.status import status_of
from rankline.runs.export_tags import CHAMPION
from rankline.serving.repository.ensemble import REGISTRY, ExportedEnsemble, active_version, before
from rankline.workflows.core.errors import ArtifactError
from tests.factories.ensembles import NAME, publish_tiny
from tests.unit.rankline.conftest import Store

pytestmark = pytest.mark.usefixtures("nothing_registered")


def named(store: Store, alias: str) -> int | None:
    found = Registry(store.client).at(NAME, alias)
    return found.version if found else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model repository with two versions, of which the first is active, in a repository of ensembles."""
    publish_tiny(tmp_path / NAME, 10)
    publish_tiny(tmp_path / NAME, 20, promote=False)
    return tmp_path / NAME


def test_what_is_in_no_registry_knows_none(path: Path) -> None:
    assert registry_uri(path) is None
    make_active(ExportedEnsemble.load(path, 2))
    assert active_version(path, NAME) == 2
    assert registry_uri(path) is None
    assert (status_of(path).registry, status_of(path).disagreements) == (None, ())


def test_promoting_and_rolling_back_move_the_alias_along(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    assert named(store, CHAMPION) == 1  # it answers
    register(ExportedEnsemble.load(path, 2), store.uri)
    assert (named(store, CHAMPION), named(store, CANDIDATE)) == (1, 2)
    make_active(ExportedEnsemble.load(path, 2))
    assert (named(store, CHAMPION), named(store, CANDIDATE), active_version(path, NAME)) == (2, None, 2)
    third = publish_tiny(path, 30, promote=False)
    make_active(third)  # registers it on the way
    assert (named(store, CHAMPION), active_version(path, NAME)) == (3, 3)
    make_active(before(path), is_urgent=True)
    assert (named(store, CHAMPION), active_version(path, NAME)) == (2, 2)
    assert status_of(path).disagreements == ()


def test_what_cannot_be_registered_does_not_answer_but_a_rollback_does(
    store: Store, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    (path / REGISTRY).write_text('{"tracking_uri": "sqlite:////nowhere/mlflow.db"}')
    other = ExportedEnsemble.load(path, 2)
    with pytest.raises(ArtifactError, match=r"/nowhere/mlflow.db does not exist.* Version 1 stays active\.$"):
        make_active(other)
    assert active_version(path, NAME) == 1
    assert "does not exist" in status_of(path).disagreements[0]
    make_active(other, is_urgent=True)
    assert active_version(path, NAME) == 2
    assert f"rankline promote {NAME} --to 2" in capfd.readouterr().err


def test_a_run_that_failed_is_not_promoted(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    run_id = store.run()
    store.client.set_terminated(run_id, "FAILED")
    failed = publish_tiny(path, 30, run=(run_id, store.uri), promote=False)
    with pytest.raises(ArtifactError, match=r"is FAILED.* Version 1 stays active\.$"):
        make_active(failed, is_urgent=True)
    assert (active_version(path, NAME), named(store, CHAMPION)) == (1, 1)


def test_of_several_promotions_at_once_version_and_alias_are_of_one(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    register(ExportedEnsemble.load(path, 2), store.uri)
    for _ in range(3):
        threads = [
            threading.Thread(target=make_active, args=(ExportedEnsemble.load(path, number),)) for number in (1, 2, 1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert named(store, CHAMPION) == active_version(path, NAME)
    found = store.client.search_model_versions(f"name = '{NAME}' and tags.version = '{NAME} 2'")
    fingerprint = ExportedEnsemble.load(path, 2).manifest.fingerprint
    assert len([one for one in found if one.tags["fingerprint"] == fingerprint]) == 1


def test_status_says_who_does_not_agree(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    ExportedEnsemble.load(path, 2).activate()  # past the registry
    (line,) = status_of(path).disagreements
    assert "version 2 is active, and the alias champion names version 1" in line
    assert f"rankline promote {NAME} --to 2" in line
    assert status_of(path).to_dict()["champion"] == 1


def test_a_note_that_cannot_be_read_is_told(path: Path) -> None:
    (path / REGISTRY).write_text("{")
    with pytest.raises(ArtifactError, match=r"registry\.json cannot be read\. Remove it"):
        registry_uri(path)
