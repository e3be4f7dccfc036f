import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from rankline.registry.mlflow_registry import CANDIDATE, RegisteredVersion, Registry, RegistryError
from rankline.runs.bench_reports import log_report
from rankline.runs.store import CHAMPION
from rankline.workflows.core.errors import ArtifactError
from tests.factories.ensembles import NAME, damage, publish_tiny
from tests.factories.reports import report_of, result_of
from tests.unit.rankline.conftest import Store, exported

pytestmark = pytest.mark.usefixtures("nothing_registered")


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """What is written beyond fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
    with pytest.raises(MlflowException, match="If '1970-01-01' is a time, give timestamps"):
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
    with pytest.raises(ArtifactError, match=f"{NAME!r} in sqlite:.* is from another project, whose requests have"):
        registry.register(third)
    for number in ("1", "2"):
        store.client.delete_model_version_tag(NAME, number, "fingerprint")
    with pytest.raises(ArtifactError, match="is from another program"):
        registry.register(third)
    assert made.number == 1
    assert len(store.client.search_model_versions(f"name = '{NAME}'")) == 2


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING"])
def test_model_of_an_unfinished_run_is_refused(store: Store, tmp_path: Path, status: str) -> None:
    ensemble = exported(store, tmp_path, status=status)
    with pytest.raises(ArtifactError, match=rf"which trained it, is {status}, expected FINISHED\. Train and export"):
        Registry(store.client).register(ensemble)


def test_deleted_runs_lost_artifacts_and_damaged_files_are_refused(store: Store, tmp_path: Path) -> None:
    ensemble = exported(store, tmp_path)
    store.client.delete_run(ensemble.run_id)
    with pytest.raises(ArtifactError, match="which trained it, was deleted"):
        Registry(store.client).register(ensemble)
    store.client.restore_run(ensemble.run_id)
    shutil.rmtree(store.client.get_run(ensemble.run_id).info.artifact_uri.removeprefix("file://"))
    with pytest.raises(RegistryError, match=rf"run {ensemble.run_id} have no feature_spec\.yaml, in file:.* Restore"):
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
