"""Versions in MLflow's registry: which is active, by whom it is registered, and what decides about it."""

import json
import shutil
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.registry.activation import make_active, register, registry_uri
from rankline.registry.mlflow_registry import CANDIDATE, RegisteredVersion, Registry, RegistryError
from rankline.registry.promotion_gate import Bounds, Decision, advantage_of
from rankline.registry.status import status_of, statuses
from rankline.runs.bench_reports import log_report
from rankline.runs.store import CHAMPION
from rankline.serving.repository.ensemble import CONFIG, REGISTRY, ExportedEnsemble, active_version, before
from rankline.training.evaluation.confidence import Difference
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.preprocess.prepared_data import KIND as PREPARED
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.storage.artifacts import Manifest
from tests.factories.ensembles import NAME, damage, publish_tiny
from tests.factories.reports import report_of, result_of
from tests.factories.specs import scalar_spec
from tests.harness.process.disk import files_of_at_most
from tests.unit.rankline.conftest import Store, exported

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


def test_rollback_does_not_need_the_registry(store: Store, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
    with pytest.raises(ArtifactError, match=r"has status FAILED instead of FINISHED.* Version 1 stays active\.$"):
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
    assert "version 2 is active, but the alias champion points to version 1" in line
    assert f"rankline promote {NAME} --to 2" in line
    assert status_of(path).to_dict()["champion"] == 1


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
def test_status_of_an_unknown_name_suggests(
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
        ((None, 0.1, None), "--by can be used only with --if-better METRIC"),
        (("auc", -0.1, None), "--by is -0.1, expected a finite, nonnegative number"),
        (("auc", None, "fast"), "p99=fast"),
    ],
)
def test_bounds_without_a_meaning_are_refused(options: tuple[None, None, None], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Bounds.parse(*options)


def test_version_is_registered_once_with_its_evidence(store: Store, tmp_path: Path) -> None:
    registry, ensemble = Registry(store.client), exported(store, tmp_path)
    report = report_of(result_of(), version=ensemble.version)
    log_report(report, store.uri, ensemble.run_id, tmp_path / "bench")
    made = registry.register(ensemble)
    assert registry.register(ensemble) == made == registry.at(NAME, CANDIDATE)
    assert made.version == ensemble.version
    assert made.fingerprint == ensemble.manifest.fingerprint
    assert registry.at(NAME, CHAMPION) is None
    models = store.client.search_logged_models([store.experiment])
    (model,) = (model for model in models if model.source_run_id == ensemble.run_id)
    assert (model.name, str(model.status)) == ("ensemble", "READY")
    root = Path(model.artifact_location.removeprefix("file://"))
    assert sorted(path.name for path in root.iterdir()) == [
        "MLmodel", "bench", "conda.yaml", "ensemble", "feature_spec.yaml", "parity.json", "python_env.yaml",
        "requirements.txt",
    ]  # fmt: skip
    assert json.loads((root / "bench" / "bench.json").read_text())["version"] == ensemble.version
    assert not any(path.is_symlink() for path in root.rglob("*"))

    copy = registry.download(made, tmp_path / "copy")
    named = {*ensemble.manifest.files, f"{NAME}/{ensemble.version}/manifest.json"}
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()} == named
    loaded = mlflow.pyfunc.load_model(str(root))
    for rows in (
        pd.DataFrame({"label": [1, 0], "x": [0, 3]}),
        [{"x": 0}, {"x": 3}],
        {"x": np.array([0, 3])},
        {"x": pd.to_datetime([0, 3], unit="us")},
        {"x": np.array(["1970-01-01", "1970-01-01 00:00:00.000003"])},
    ):
        np.testing.assert_array_equal(loaded.predict(rows), [10, 13])
    with pytest.raises(MlflowException, match="If '1970-01-01' is a time, pass timestamps"):
        loaded.predict({"x": ["1970-01-01", "today"]})
    with pytest.raises(MlflowException, match=r"missing inputs \['x'\]"):  # which column is which is not known
        loaded.predict(np.array([[0], [3]]))
    assert mlflow.pyfunc.get_model_dependencies(str(root)) == str(root / "requirements.txt")
    assert f"rankline=={metadata.version('rankline')}" in (root / "requirements.txt").read_text().splitlines()


def test_name_of_another_project_is_not_taken_over(store: Store, tmp_path: Path) -> None:
    registry = Registry(store.client)
    made = registry.register(exported(store, tmp_path))
    (tmp_path / "two").mkdir()
    other = exported(store, tmp_path / "two", 20)
    assert registry.register(other).number == 2  # which takes the same columns
    (tmp_path / "three").mkdir()
    third = exported(store, tmp_path / "three", 30)
    store.client.set_model_version_tag(NAME, "2", "inputs", "other columns")
    with pytest.raises(
        ArtifactError, match=f"{NAME!r} in sqlite:.* belongs to another project, whose requests have different"
    ):
        registry.register(third)
    for number in ("1", "2"):
        store.client.delete_model_version_tag(NAME, number, "fingerprint")
    with pytest.raises(ArtifactError, match="belongs to another program"):
        registry.register(third)
    assert made.number == 1
    assert len(store.client.search_model_versions(f"name = '{NAME}'")) == 2


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING"])
def test_model_of_an_unfinished_run_is_refused(store: Store, tmp_path: Path, status: str) -> None:
    ensemble = exported(store, tmp_path, status=status)
    with pytest.raises(
        ArtifactError, match=rf"which trained the model, has status {status} instead of FINISHED\. Train and export"
    ):
        Registry(store.client).register(ensemble)


def test_deleted_runs_lost_artifacts_and_damaged_files_are_refused(store: Store, tmp_path: Path) -> None:
    ensemble = exported(store, tmp_path)
    store.client.delete_run(ensemble.run_id)
    with pytest.raises(ArtifactError, match="which trained the model, was deleted"):
        Registry(store.client).register(ensemble)
    store.client.restore_run(ensemble.run_id)
    shutil.rmtree(store.client.get_run(ensemble.run_id).info.artifact_uri.removeprefix("file://"))
    with pytest.raises(
        RegistryError, match=rf"run {ensemble.run_id} in file:.* do not include feature_spec\.yaml\. Restore"
    ):
        Registry(store.client).register(ensemble)
    file = damage(ensemble, "predict")
    with pytest.raises(ArtifactError, match=f"{file.name} does not match its checksum"):
        Registry(store.client).register(ensemble)


def test_full_artifact_store_leaves_the_registry_as_it_was(store: Store, tmp_path: Path) -> None:
    registry, ensemble = Registry(store.client), exported(store, tmp_path)
    registry.move(CHAMPION, registry.register(ensemble))
    champion, candidate = registry.at(NAME, CHAMPION), registry.at(NAME, CANDIDATE)
    num_versions = len(store.client.search_model_versions(f"name = '{NAME}'"))
    large = publish_tiny(tmp_path / NAME, 20, num_padding_bytes=30_000_000, promote=False)
    with files_of_at_most(20_000_000), pytest.raises(RegistryError, match="was not registered, in .*File too large"):
        registry.register(large)
    assert (registry.at(NAME, CHAMPION), registry.at(NAME, CANDIDATE)) == (champion, candidate)
    assert len(store.client.search_model_versions(f"name = '{NAME}'")) == num_versions
    registry.register(large)  # there is room again


@pytest.mark.parametrize(
    ("split", "trained_on", "is_remarked"),
    [("random", "new", False), ("random", "old", True), ("group", "old", False), ("time", "old", False)],
)
def test_verdict_says_that_the_champion_may_know_the_rows(
    tmp_path: Path, split: str, trained_on: str, is_remarked: bool
) -> None:
    champion = publish_tiny(tmp_path / NAME, 10)
    champion = replace(champion, manifest=replace(champion.manifest, made_from={PREPARED: trained_on}))
    manifest = Manifest(kind=PREPARED, fingerprint="new", details={"config": {"split": split}})
    remark = advantage_of(champion, PreparedData(path=tmp_path, spec=scalar_spec([(3, 2)], 1), manifest=manifest))
    assert ("Version 1 was trained on other prepared data, perhaps on some of these rows" in remark) == is_remarked
    found = Difference(before=0.9, after=0.8, error=0.01, is_paired=True)
    said = Decision(champion=1, candidate=2, title="AUC", found=found, p99_ms=None, refusals=("no",), remark=remark)
    assert said.words.endswith(remark or ")")


def test_champion_is_no_longer_candidate(store: Store, tmp_path: Path) -> None:
    registry = Registry(store.client)
    first, second = (registry.register(exported(store, tmp_path, offset)) for offset in (10, 20))
    registry.move(CHAMPION, first)
    assert registry.at(NAME, CANDIDATE) == second
    registry.move(CHAMPION, second)
    assert (registry.at(NAME, CANDIDATE), registry.at(NAME, CHAMPION)) == (None, second)


def test_version_of_another_program_is_recognised(store: Store) -> None:
    store.client.create_registered_model("other")
    for tags in ({}, {"version": f"{NAME} 3", "fingerprint": "f"}):
        store.client.create_model_version("other", source=str(store.root), tags=tags)
    for version in store.client.search_model_versions("name = 'other'"):
        found = RegisteredVersion.of(version)
        assert (found.version, found.fingerprint) == (0, "")


def test_model_trained_elsewhere_is_registered_without_a_run(store: Store, tmp_path: Path) -> None:
    registry = Registry(store.client)
    made = registry.register(publish_tiny(tmp_path / NAME, 30))
    assert registry.at(NAME, CANDIDATE) == made
    assert not store.client.get_model_version(NAME, str(made.number)).run_id
