"""README and docs/guide/serving.md say what there is. `test_pipeline.py` runs their commands, all but `make demo`."""

import re
from dataclasses import fields
from pathlib import Path

from rankline.serving.export.config import ExportConfig
from tests.harness.commands.command_line import commands, started

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")


def test_the_readme_shows_commands() -> None:
    assert commands(README)[:3] == ["make demo", "make test", "make test-all"]
    assert len(commands(README)) > 7


def test_make_demo_runs_it_all(tmp_path: Path) -> None:
    short = f"--rows 20000 --epochs 1 --batch-sizes 1 --work-dir {tmp_path} --repository {tmp_path}/repository"
    process = started(f"make demo ARGS='{short}'", ROOT)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "best attainable" in output


def test_serving_md_names_options_and_files_that_are_there() -> None:
    for option in re.findall(r"`--([a-z-]+)`", SERVING):
        assert option.removeprefix("no-").replace("-", "_") in {field.name for field in fields(ExportConfig)}, option
