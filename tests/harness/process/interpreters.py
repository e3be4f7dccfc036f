"""The Pythons of this machine that Rankline runs on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from rankline.doctor import interpreter

VERSIONS = ("3.10", "3.11", "3.12", "3.13")


@cache
def suitable_pythons() -> Mapping[str, Path]:
    """One of each version: this one, then what is on PATH, in pyenv's folder, in uv's."""
    found = {version: next(filter(_will_do, _candidates(version)), None) for version in VERSIONS}
    return {version: path for version, path in found.items() if path}


def own_version() -> str:
    """Of the Python that runs the tests."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    if version == own_version():
        yield Path(sys.base_prefix) / "bin" / name
    if on_path := shutil.which(name):
        yield Path(on_path)
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    yield from sorted(pyenv.glob(f"{version}.*/bin/{name}"))
    yield from sorted(uv.glob(f"cpython-{version}.*/bin/{name}"))


def _will_do(python: Path) -> bool:
    """Whether `scripts/setup.sh` would take it."""
    done = subprocess.run([python, interpreter.__file__], capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stdout.strip()
