"""TorchScript of a repository is checked wherever it is loaded."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankline.serving.engines.onnxruntime.from_torch_script import to_onnx
from rankline.serving.engines.pytorch.offline import Model
from rankline.workflows.core.errors import ArtifactError
from tests.harness.hostile.files.torch_script import archive, forward


@pytest.mark.parametrize("load", [Model, lambda path: to_onnx(SimpleNamespace(model_path=path), 17)])
def test_a_program_that_writes_files_is_refused(load: Callable[[Path], Any], tmp_path: Path) -> None:
    effect = tmp_path / "effect"
    (tmp_path / "model.pt").write_bytes(archive(forward(f'return torch.from_file("{effect}", True, 4)')))
    with pytest.raises(ArtifactError, match=r"holds \['from_file'\]"):
        load(tmp_path / "model.pt")
    assert not effect.exists()
