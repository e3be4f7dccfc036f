from pathlib import Path

import pytest

from rankline.runs.export_tags import record_export
from rankline.runs.summary import find_run
from rankline.serving.repository.ensemble import KIND, ExportedEnsemble
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.storage.artifacts import Manifest
from tests.unit.rankline.conftest import Store


def exported(path: Path, run_id: str, uri: str, version: int = 4) -> ExportedEnsemble:
    """An ensemble with one step of 2.5 MB."""
    step = path / f"shop_score_v{version}" / "1"
    step.mkdir(parents=True)
    (step / "model").write_bytes(bytes(2_500_000))
    details = {"run_id": run_id, "tracking_uri": uri, "engine": "onnx"}
    manifest = Manifest(kind=KIND, fingerprint="", details=details)
    return ExportedEnsemble(path=path, name="shop", version=version, steps=(step.parent.name,), manifest=manifest)


def test_a_run_says_what_it_was_exported_as(store: Store, tmp_path: Path) -> None:
    run_id = store.trained("mlp", {"auc": 0.7})
    for version in (3, 4):
        record_export(exported(tmp_path, run_id, store.uri, version), tmp_path)
    run = find_run(store.reader, run_id)
    assert (run.version, run.engine, run.serving) == ("shop 4", "onnx", {"megabytes": 2.5})


def test_a_run_that_is_gone_is_told_and_what_was_trained_elsewhere_has_none(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"does not say that it was exported as version 4: .* The ensemble is whole"
    ):
        record_export(exported(tmp_path, "0" * 32, store.uri), tmp_path)
    record_export(exported(tmp_path / "elsewhere", "", "nowhere"), tmp_path)
