"""The `rankline` command of this environment."""

import subprocess
import sys
from pathlib import Path

RANKLINE = Path(sys.executable).with_name("rankline")


def rankline(*arguments: str, cwd: Path, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run it to its end in a directory."""
    return subprocess.run(
        [RANKLINE, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=240, check=False
    )
