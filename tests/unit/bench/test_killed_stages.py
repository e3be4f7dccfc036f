from pathlib import Path

import pytest

from bench.killed_stages import _check
from tests.support.tiny_ensembles import NAME, damage, publish_tiny
from workflows.artifacts import publish
from workflows.errors import ArtifactError


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
