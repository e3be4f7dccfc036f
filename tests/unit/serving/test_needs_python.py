from pathlib import Path

import pytest

from serving.model_config import PYTHON_RUNTIME
from serving.needs_python import need_python
from tests.support.tiny_ensembles import NAME, publish_tiny


@pytest.mark.parametrize(
    ("runtime", "native", "needed"),
    [("", ["nvtabular"], False), (PYTHON_RUNTIME, ["nvtabular"], True), ("", [], True)],
)
def test_an_ensemble_needs_python_where_a_step_does(
    tmp_path: Path, runtime: str, native: list[str], needed: bool
) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10, runtime=runtime)
    assert need_python([NAME], [tmp_path, ensemble.path], native) == needed
    assert need_python([ensemble.steps[0]], [ensemble.path], native) == needed


def test_what_cannot_be_read_may_need_it(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10)
    (ensemble.path / ensemble.steps[1] / "config.pbtxt").write_text("nonsense {")
    assert need_python([NAME], [ensemble.path], ["nvtabular"])
    assert need_python(["nobody"], [ensemble.path], ["nvtabular"])
