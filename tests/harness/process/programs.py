"""Programs of the system that some tests need."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest


def need_program(name: str, *, package: str, directories: Iterable[Path] = ()) -> str:
    """The path of a program; skips the test if it is not there."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, directories)])
    if (found := shutil.which(name, path=path)) is None:
        pytest.skip(f"{name} was not found: apt-get install {package} (or scripts/system-packages.sh)")
    return found
