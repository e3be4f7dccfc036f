"""Each framework is imported only where its models are trained."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.process.frameworks import HIDE

TRAIN_AND_EXPORT = """
import sys
from dataclasses import replace
from pathlib import Path
{hide}
from rankline.training.config.train import TrainConfig
from rankline.training.models import MODELS
from rankline.training.tracking import TrackingConfig
from rankline.training.run.train import train
train(Path({prepared!r}), Path("model"), TrainConfig(model=MODELS[{model!r}](), batch_size=512, epochs=1),
      tracking=TrackingConfig(directory=Path({work!r}), experiment="movielens-torch"))
import rankline.serving.export.exporter, rankline.serving.engines.{engine}.offline
assert not {{{hidden!r}}} & {{name for name, module in sys.modules.items() if module}}
"""


@pytest.mark.parametrize(
    ("model", "engine", "hidden"), [("torch_mlp", "pytorch", "tensorflow"), ("mlp", "tensorflow", "torch")]
)
def test_training_and_exporting_with_one_framework_need_no_other(
    model: str, engine: str, hidden: str, prepared: Path, tmp_path: Path, work: Path
) -> None:
    code = TRAIN_AND_EXPORT.format(
        hide=HIDE[hidden], prepared=str(prepared), model=model, engine=engine, hidden=hidden, work=str(work)
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "manifest.json").is_file()
