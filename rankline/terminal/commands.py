"""Command lines that are printed to be pasted into a shell."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankline.recipes.overrides import typed
from rankline.recipes.workspace import REPOSITORY, WORK_DIR


def command(*words: str, work_dir: Path = WORK_DIR, repository: Path = REPOSITORY) -> str:
    """Return a `rankline` command, quoted for the shell, with the directories that are not the defaults."""
    places = ["--work-dir", str(work_dir)] if work_dir != WORK_DIR else []
    places += ["--repository", str(repository)] if repository != REPOSITORY else []
    return shlex.join(["rankline", *words, *places])


def options_of(values: Mapping[str, Any]) -> list[str]:
    """Return the words that pass these values of config fields on a command line. Floats keep all digits."""
    exact = {name: repr(value) if isinstance(value, float) else value for name, value in values.items()}
    return [word for name, value in exact.items() for word in typed(name, value).split(" ", 1)]
