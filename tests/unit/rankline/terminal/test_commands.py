"""Commands that are printed can be pasted into a shell."""

import shlex
from pathlib import Path

from rankline.recipes.workspace import REPOSITORY, WORK_DIR
from rankline.terminal.commands import command, options_of


def test_command_quotes_its_words_and_omits_default_directories() -> None:
    printed = command("train", "my recipe.yaml", work_dir=Path("a b"), repository=Path("models"))
    assert shlex.split(printed) == [
        *("rankline", "train", "my recipe.yaml"),
        *("--work-dir", "a b", "--repository", "models"),
    ]
    assert command("ui", work_dir=WORK_DIR, repository=REPOSITORY) == "rankline ui"


def test_options_keep_all_digits() -> None:
    values = {"learning_rate": 0.123456789, "hidden": (64, 32), "fused": False, "xla": True, "engine": "onnx"}
    expected = "--learning-rate 0.123456789 --hidden 64,32 --no-fused --xla --engine onnx"
    assert options_of(values) == expected.split()
