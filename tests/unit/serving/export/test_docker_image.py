"""What an image may be made of; `tests/e2e/deployment/test_container_stack.py` builds and runs one."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankline.serving.export.docker_image import build_image
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.workflows.core.errors import ConfigError, ExportError
from tests.factories.ensembles import publish_tiny


@pytest.fixture
def ensemble(tmp_path: Path) -> ExportedEnsemble:
    """One whose manifest says what an export of TensorFlow says."""
    tiny = publish_tiny(tmp_path / "tiny", 10)
    served: dict[str, Any] = {"engine": "tensorflow", "native": {"score": True}, "uncompiled": None}
    served["parity"] = {"largest_score_difference": 0.0}
    return replace(tiny, manifest=replace(tiny.manifest, details={**tiny.manifest.details, **served}))


@pytest.mark.parametrize(
    "change", [{"engine": "pytorch"}, {"uncompiled": "no compiled form"}, {"native": {"score": False}}]
)
def test_image_of_an_ensemble_that_needs_python_is_refused(
    ensemble: ExportedEnsemble, change: dict[str, object]
) -> None:
    details = {**ensemble.manifest.details, **change}
    needs_python = replace(ensemble, manifest=replace(ensemble.manifest, details=details))
    with pytest.raises(ConfigError, match=r"requires Python for serving.*--engine onnx"):
        build_image(needs_python)


def test_missing_docker_is_named_with_its_remedy(
    ensemble: ExportedEnsemble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match=r"docker was not found\. Start Docker Engine 25 or later"):
        build_image(ensemble)


ANSWERS = "[ $1 != version ] || { echo 26.1.5 amd64; exit 0; }"


@pytest.mark.parametrize(
    ("docker", "message"),
    [
        ("echo 20.10.24 amd64", r"Docker Engine is version 20\.10\.24, expected 25 or later\. Upgrade it"),
        ("echo 26.1.5 arm64", r"Docker Engine runs on arm64, but the server requires amd64\. Set DOCKER_HOST"),
        ("echo Cannot connect to the Docker daemon. >&2; exit 1", r"Cannot connect .*\. Start Docker Engine 25"),
        (f"{ANSWERS}; echo 'write /x: no space left on device' >&2; exit 1", r"docker build: .*docker builder prune"),
    ],
)
def test_unsuitable_docker_is_named_with_its_remedy(
    ensemble: ExportedEnsemble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, docker: str, message: str
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/docker"
    program.write_text(f"#!/bin/sh\n{docker}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(ExportError, match=message) as refused:
        build_image(ensemble)
    assert "\n" not in str(refused.value)
