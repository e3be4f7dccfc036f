from pathlib import Path

import pytest

from bench.chaos.stages import _check
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.storage.artifacts import publish
from tests.factories.ensembles import NAME, damage, publish_tiny


def test_damage_of_an_artifact_or_of_a_version_is_found(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 20)
    with publish(tmp_path / "artifact", "thing") as staging:
        (staging / "file").write_bytes(b"x")
    _check(tmp_path / NAME, tmp_path / "artifact")
    (tmp_path / "artifact" / "file").write_bytes(b"y")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        _check(tmp_path / NAME, tmp_path / "artifact")
    (tmp_path / "artifact" / "file").write_bytes(b"x")
    damage(ensemble, "predict")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        _check(tmp_path / NAME, tmp_path / "artifact")
