import sys
from pathlib import Path

import pytest

from bench.killed_stages import _check, _start_and_kill
from tests.support.tiny_ensembles import NAME, damage, publish_tiny
from workflows.artifacts import publish
from workflows.errors import ArtifactError


def test_what_a_kill_has_damaged_is_seen(tmp_path: Path) -> None:
    publish_tiny(tmp_path / NAME, 10)
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


def test_a_stage_is_killed_at_work_or_has_ended() -> None:
    assert _start_and_kill([sys.executable, "-c", "import time; time.sleep(600)"], 0.0)
    assert not _start_and_kill([sys.executable, "-c", ""], 600.0)
