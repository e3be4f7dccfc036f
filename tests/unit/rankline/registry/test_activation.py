"""Which version is active, by whom it is registered, and what decides about it."""

import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.registry.activation import make_active, register, registry_uri
from rankline.registry.mlflow_registry import CANDIDATE, Registry
from rankline.registry.promotion_gate import Bounds
from rankline.registry.status import status_of, statuses
from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import CONFIG, REGISTRY, ExportedEnsemble, active_version, before
from rankline.workflows.core.errors import ArtifactError, ConfigError
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


def test_ensemble_without_a_registry_is_promoted(path: Path) -> None:
    assert registry_uri(path) is None
    make_active(ExportedEnsemble.load(path, 2))
    assert active_version(path, NAME) == 2
    assert registry_uri(path) is None
    assert (status_of(path).registry, status_of(path).disagreements) == (None, ())


def test_promotion_and_rollback_move_the_alias(store: Store, path: Path) -> None:
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


def test_promotion_needs_the_registry_and_a_rollback_does_not(
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


def test_promotion_of_a_failed_run_is_refused(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    run_id = store.run()
    store.client.set_terminated(run_id, "FAILED")
    failed = publish_tiny(path, 30, run=(run_id, store.uri), promote=False)
    with pytest.raises(ArtifactError, match=r"is FAILED.* Version 1 stays active\.$"):
        make_active(failed, is_urgent=True)
    assert (active_version(path, NAME), named(store, CHAMPION)) == (1, 1)


def test_concurrent_promotions_leave_version_and_alias_of_one(store: Store, path: Path) -> None:
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


def test_status_says_where_alias_and_active_version_differ(store: Store, path: Path) -> None:
    register(ExportedEnsemble.load(path), store.uri)
    ExportedEnsemble.load(path, 2).activate()  # past the registry
    (line,) = status_of(path).disagreements
    assert "version 2 is active, and the alias champion names version 1" in line
    assert f"rankline promote {NAME} --to 2" in line
    assert status_of(path).to_dict()["champion"] == 1


def test_unreadable_note_of_the_registry_is_named(path: Path) -> None:
    (path / REGISTRY).write_text("{")
    with pytest.raises(ArtifactError, match=r"registry\.json cannot be read\. Remove it"):
        registry_uri(path)


def test_status_of_one_ensemble_where_another_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "model_repository"
    publish_tiny(repository / NAME, 10)
    broken = repository / "broken" / "broken" / CONFIG
    broken.parent.mkdir(parents=True)
    broken.write_text("?")
    with pytest.raises(ArtifactError, match="broken"):
        list(statuses(repository))
    assert (status_of(repository / NAME).name, status_of(repository / NAME).version) == (NAME, 1)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["status", NAME])
    assert (done.exit_code, done.stderr) == (0, "")
    assert NAME in done.stdout


@pytest.mark.parametrize(
    ("name", "reason"), [("tinny", f"Did you mean {NAME!r}"), ("criteo-dlrm", "rankline export criteo-dlrm")]
)
def test_status_of_a_name_that_was_not_exported_suggests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    publish_tiny(tmp_path / "model_repository" / NAME, 10)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["status", name])
    assert done.exit_code == 1
    assert reason in " ".join(done.stderr.split())


def test_bounds_of_a_promotion_are_read_from_options() -> None:
    assert Bounds.parse(None, None, None) is None
    assert Bounds.parse("auc", None, None) == Bounds(metric="auc")
    assert Bounds.parse("auc", 0.001, "10ms") == Bounds(metric="auc", by=0.001, p99_ms=10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((None, 0.1, None), "--by: with --if-better METRIC only"),
        ((None, None, "1ms"), "--p99: with --if-better METRIC only"),
        (("auc", -0.1, None), "--by is -0.1, expected a finite number of at least 0"),
        (("auc", float("nan"), None), "--by is nan"),
        (("auc", None, "fast"), "p99=fast"),
    ],
)
def test_bounds_without_a_meaning_are_refused(options: tuple[None, None, None], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Bounds.parse(*options)
