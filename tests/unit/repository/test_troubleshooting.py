"""docs/guide/troubleshooting.md quotes messages as the program writes them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "troubleshooting.md"
NOT_OURS = {"ModuleNotFoundError: No module named 'training.models'", "unexpected deadlock", "pip check"}
_VALUE = re.compile(r"…|\bN\b|\bCOLUMN\b|'x'|\d[\d.e-]*")
"""What stands for a value in a quoted message."""


def literals() -> str:
    """Every text in the source, with the parts of f-strings in a row."""
    folders = ("rankline", "serving", "training", "workflows")
    trees = (ast.parse(path.read_text("utf-8")) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))


@pytest.fixture(scope="module")
def source() -> str:
    return literals()


def quoted() -> list[str]:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [text for line in rows for text in re.findall(r"`([^`]+)`", line.split("|")[1])]


def test_quoted_messages_exist(source: str) -> None:
    messages = [text for text in quoted() if " " in text and text not in NOT_OURS]
    assert len(messages) > 15
    parts = {part.strip(" .,:") for text in messages for part in _VALUE.split(text)}
    assert {part for part in parts if len(part) > 8 and part not in source} == set()
