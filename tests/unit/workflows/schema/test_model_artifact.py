from pathlib import Path

import pytest

from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.model_artifact import KIND, TORCH_SCRIPT, TrainedModel
from rankline.workflows.storage.artifacts import publish

DETAILS = {"run_id": "r", "tracking_uri": "sqlite:///x", "metrics": {"valid_auc": 0.7}}


def artifact(path: Path, **details: str) -> Path:
    with publish(path, KIND, details={**DETAILS, **details}) as staging:
        (staging / "model.pt").write_bytes(b"model")
    return path


def test_model_artifact_names_its_format_and_path(tmp_path: Path) -> None:
    model = TrainedModel.load(artifact(tmp_path / "m", format=TORCH_SCRIPT))
    assert (model.format, model.model_path) == ("model.pt", tmp_path / "m" / "model.pt")
    with pytest.raises(ArtifactError, match=r"holds model\.pt, expected model\.savedmodel"):
        _ = model.saved_model


def test_format_of_another_package_is_taken_as_it_is(tmp_path: Path) -> None:
    assert TrainedModel.load(artifact(tmp_path / "m", format="model.jax")).format == "model.jax"


def test_manifest_without_its_details_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json lacks format\. Train the model again"):
        TrainedModel.load(artifact(tmp_path / "m"))
