"""Programs of the system that some tests need, and packages as an installer leaves them."""

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


def leave_installed(site: Path, name: str, entry_points: str = "", *, release: str = "1.0") -> None:
    """What an installer leaves of a package beside its modules; `entry_points` in the form of entry_points.txt."""
    about = site / f"{name.replace('-', '_')}-{release}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n", encoding="utf-8")
    if entry_points:
        (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
