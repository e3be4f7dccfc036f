"""What an image may be made of; `tests/system/test_container_stack.py` builds and runs one."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.ensemble import ExportedEnsemble
from serving.image import build_image
from tests.support.tiny_ensembles import publish_tiny
from workflows.errors import ConfigError, ExportError


@pytest.fixture
def ensemble(tmp_path: Path) -> ExportedEnsemble:
    """One whose manifest says what an export of TensorFlow says."""
    tiny = publish_tiny(tmp_path / "tiny", 10)
    served = {"engine": "tensorflow", "native": {"score": True}, "uncompiled": None}
    return replace(tiny, manifest=replace(tiny.manifest, details={**tiny.manifest.details, **served}))


@pytest.mark.parametrize(
    "change", [{"engine": "pytorch"}, {"uncompiled": "no compiled form"}, {"native": {"score": False}}]
)
def test_what_needs_python_is_refused_at_once(ensemble: ExportedEnsemble, change: dict[str, object]) -> None:
    details = {**ensemble.manifest.details, **change}
    needs_python = replace(ensemble, manifest=replace(ensemble.manifest, details=details))
    with pytest.raises(ConfigError, match=r"needs Python to be served.*--engine onnx"):
        build_image(needs_python)


def test_no_docker_is_one_line(ensemble: ExportedEnsemble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match=r"docker was not found\. Start Docker Engine 25 or later"):
        build_image(ensemble)
