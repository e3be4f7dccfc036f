"""`scripts/setup.sh` says in one line what a machine lacks; nothing is installed here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "dirname", "cat", "cksum", "cut", "tr", "grep", "env")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What setup reads, without an environment."""
    for name in ("scripts", "rankline"):
        (tmp_path / name).mkdir()
    for name in ("scripts/setup.sh", "rankline/interpreter.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def program(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def refusal(checkout: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(checkout / "scripts/setup.sh"), "cpu"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert not (checkout / ".venv").exists()
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_no_python_at_all(checkout: Path) -> None:
    assert "apt-get install python3.11 python3.11-venv python3.11-dev" in refusal(
        checkout, PYTHON="/nonexistent/python"
    )


def test_a_python_that_does_not_start(checkout: Path) -> None:
    broken = program(checkout, "broken-python", "exit 3")
    assert "broken-python will not do: it does not start" in refusal(checkout, PYTHON=broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sys.version_info = (3, 12, 0)", "it is Python 3.12, and 3.10 or 3.11 is needed"),
        ("sysconfig.get_config_vars()['INSTSONAME'] = 'libpython3.11.a'", "no shared libpython.*--enable-shared"),
        (
            "paths = sysconfig.get_paths(); sysconfig.get_paths = lambda *_, **__: {**paths, 'include': '/'}",
            "no C headers.*-dev",
        ),
        ("importlib.util.find_spec = lambda name: None", "cannot make virtual environments.*-venv"),
    ],
)
def test_a_python_that_lacks_something(checkout: Path, change: str, message: str) -> None:
    """A real interpreter that sees itself changed before it runs the check."""
    (checkout / "sitecustomize.py").write_text(f"import importlib.util, sys, sysconfig\n{change}\n")
    lacking = program(checkout, "python", f'PYTHONPATH="{checkout}" exec "{sys.executable}" "$@"')
    assert re.search(message, refusal(checkout, PYTHON=lacking))


def test_no_compiler(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    assert "g++ was not found" in refusal(checkout, PATH=str(tools), PYTHON=sys.executable)


def test_an_environment_with_more_extras_will_do(checkout: Path) -> None:
    sources = (checkout / "pyproject.toml").read_bytes() + (checkout / "constraints.txt").read_bytes()
    checksum = subprocess.run(["cksum"], input=sources, capture_output=True, check=True).stdout.split()[0].decode()
    (checkout / ".venv").mkdir()
    (checkout / f".venv/.installed-cpu-dev-{checksum}").touch()
    done = subprocess.run([str(checkout / "scripts/setup.sh"), "cpu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
