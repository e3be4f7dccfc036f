"""`scripts/setup.sh`: which Python it takes, and what it says in one line where something is missing."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.harness.process.interpreters import suitable_pythons

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TOOLS = ("sh", "dirname", "cat", "cksum", "cut", "tr", "grep", "env", "sed", "tail", "uname", "mktemp", "rm", "touch")
UV = Path(sys.executable).with_name("uv")
NOWHERE = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
    "UV_DEFAULT_INDEX": "file:///no",
    "UV_NO_CONFIG": "1",
}
"""pip and uv have nowhere to look: setup ends after it made the environment, before it installs anything."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What setup reads, without an environment."""
    checkout = tmp_path / "checkout"
    for name in ("scripts/setup.sh", "rankline/doctor/interpreter.py", "pyproject.toml", "constraints.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    return checkout


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with what the script calls, and neither a Python nor uv nor a compiler."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    return tools


def program(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def changed_python(directory: Path, name: str, change: str) -> str:
    """A real interpreter that sees itself changed before it runs the check."""
    site = directory / f"site of {name}"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import importlib.util, sys, sysconfig\n{change}\n")
    return program(directory, name, f'PYTHONPATH="{site}" exec "{sys.executable}" "$@"')


def setup(checkout: Path, extras: str = "cpu", **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHON" and not name.startswith("UV_")}
    return subprocess.run(
        [str(checkout / "scripts/setup.sh"), extras],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def refusal(checkout: Path, **environment: str) -> str:
    """What it says; nothing has been made."""
    before = sorted(checkout.iterdir())
    done = setup(checkout, **environment)
    assert done.returncode == 1
    assert sorted(checkout.iterdir()) == before
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nonexistent", "set PYTHON=/path/to/python (3.10 to 3.13), or apt-get install"),
        ("broken-python", "broken-python is unsuitable: it does not start"),
    ],
)
def test_chosen_python_that_does_not_start_is_rejected(checkout: Path, python: str, message: str) -> None:
    program(checkout, "broken-python", "exit 3")
    assert message in refusal(checkout, PYTHON=str(checkout / python))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sys.version_info = (3, 9, 2)", "it is Python 3.9, expected 3.10 to 3.13"),
        ("sysconfig.get_config_vars()['INSTSONAME'] = 'libpython3.11.a'", "no shared libpython.*--enable-shared"),
        (
            "paths = sysconfig.get_paths(); sysconfig.get_paths = lambda *_, **__: {**paths, 'include': '/'}",
            "no C headers.*-dev",
        ),
        ("importlib.util.find_spec = lambda name: None", "cannot make virtual environments.*-venv"),
    ],
)
def test_python_that_lacks_something_is_rejected(checkout: Path, tmp_path: Path, change: str, message: str) -> None:
    assert re.search(message, refusal(checkout, PYTHON=changed_python(tmp_path, "python", change)))


def test_missing_compiler_and_unsupported_machine_are_named(checkout: Path, tools: Path) -> None:
    chosen = {"PATH": str(tools), "PYTHON": sys.executable}
    assert "g++ was not found" in refusal(checkout, **chosen)
    (tools / "uname").unlink()
    program(tools, "uname", "echo riscv64")
    assert "this machine is riscv64" in refusal(checkout, **chosen)


# The environment that is there


def environment_of(checkout: Path, python: str) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(python)


@pytest.mark.parametrize("change", [None, "sys.version_info = (3, 9, 2)"], ids=["gone", "too old"])
def test_environment_of_an_unsuitable_python_is_rejected(checkout: Path, tmp_path: Path, change: str | None) -> None:
    environment_of(checkout, changed_python(tmp_path, "python", change) if change else "/nonexistent/python3.11")
    (checkout / ".venv/.installed-cpu-0").touch()
    assert re.search("the Python in .venv is unsuitable: it .*run `make clean` to remove .venv", refusal(checkout))


def test_environment_of_another_python_than_the_chosen_is_rejected(checkout: Path, tmp_path: Path) -> None:
    environment_of(checkout, sys.executable)
    other = program(tmp_path, "python3.10", "echo Python 3.10.99")
    message = (
        rf"\.venv has Python {sys.version.split()[0]}, but PYTHON={other} is Python 3\.10\.99: run make clean first"
    )
    assert re.search(message, refusal(checkout, PYTHON=other))


def test_developer_environment_serves_every_target(checkout: Path) -> None:
    extras = re.findall(r"scripts/setup.sh (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    most = max(extras, key=len)
    sources = (checkout / "pyproject.toml").read_bytes() + (checkout / "constraints.txt").read_bytes()
    checksum = subprocess.run(["cksum"], input=sources, capture_output=True, check=True).stdout.split()[0].decode()
    environment_of(checkout, sys.executable)
    (checkout / f".venv/.installed-{most.replace(',', '-')}-{checksum}").touch()
    for of_target in dict.fromkeys(extras):
        done = setup(checkout, of_target)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), of_target


# Which Python


def environment_made(checkout: Path, **environment: str) -> list[str]:
    """Have the environment made, and no package installed; what was said."""
    done = setup(checkout, **{**NOWHERE, **environment})
    lines = done.stdout.splitlines()
    assert "installing into .venv" in lines[-1], done.stderr
    return lines


def test_newest_suitable_python_is_chosen(checkout: Path, tools: Path) -> None:
    """On a machine of another kind, of which it says so."""
    program(tools, "g++", "exit 0")
    program(tools, "python3.13", "exit 127")  # as a shim of pyenv
    changed_python(tools, "python3.12", "importlib.util.find_spec = lambda name: None")
    for name in ("python3.11", "python3.10", "python3"):
        program(tools, name, f'echo {name} >>"{tools}/taken"; exec "{sys.executable}" "$@"')
    (tools / "uname").unlink()
    program(tools, "uname", "echo aarch64")
    lines = environment_made(checkout, PATH=str(tools))
    assert set((tools / "taken").read_text().split()) == {"python3.11"}
    assert len(lines) == 1
    assert "arm64 is untested" in lines[0]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Python 3.13 of this machine as an archive like those that uv fetches, in a folder, and a list with it alone."""
    python = suitable_pythons().get("3.13")
    if python is None:
        pytest.skip("no Python 3.13 that an archive could be made of")
    facts = "import platform, sys; print(sys.base_prefix, platform.python_version())"
    prefix, version = subprocess.run([python, "-c", facts], capture_output=True, text=True, check=True).stdout.split()
    folder = tmp_path_factory.mktemp("mirror")
    archive = f"20991231/cpython-{version}+20991231-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    (folder / "20991231").mkdir()
    with tarfile.open(folder / archive, "w:gz", compresslevel=1) as tar:
        for part in ("bin/python3.13", "include/python3.13", "lib/python3.13"):
            tar.add(Path(prefix) / part, f"python/{part}", filter=_without_what_is_large)
    major, minor, patch = map(int, version.split("."))
    entry = {
        "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu", "variant": None,
        "major": major, "minor": minor, "patch": patch, "prerelease": "", "sha256": None, "build": "20991231",
        "url": f"https://github.com/astral-sh/python-build-standalone/releases/download/{archive}",
    }  # fmt: skip
    (folder / "list.json").write_text(json.dumps({f"cpython-{version}-linux-x86_64-gnu": entry}))
    return {
        "UV_PYTHON_INSTALL_MIRROR": folder.as_uri(),
        "UV_PYTHON_DOWNLOADS_JSON_URL": (folder / "list.json").as_uri(),
    }


def _without_what_is_large(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("/test", "/__pycache__", "/site-packages", "/config-3.13-x86_64-linux-gnu", "/idlelib", "/tests")
    return None if member.name.endswith(left_out) else member


def uv_wheel(folder: Path) -> dict[str, str]:
    """For pip: a folder with this environment's uv as a wheel, and no index."""
    pin = re.search(r"^uv==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin
    folder.mkdir()
    with zipfile.ZipFile(folder / f"uv-{pin[1]}-py3-none-any.whl", "w") as wheel:
        script = zipfile.ZipInfo(f"uv-{pin[1]}.data/scripts/uv")
        script.external_attr = 0o100755 << 16  # a regular file that may be run
        wheel.writestr(script, f'#!/bin/sh\nexec "{UV}" "$@"\n')
        about = f"uv-{pin[1]}.dist-info"
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {pin[1]}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return {**NOWHERE, "PIP_FIND_LINKS": str(folder)}


def test_uv_fetches_a_python_where_none_is_suitable(
    checkout: Path, tools: Path, tmp_path: Path, mirror: dict[str, str]
) -> None:
    """As on a system whose only Python is newer; uv comes from PyPI too, for as long as it is needed."""
    program(tools, "g++", "exit 0")
    changed_python(tools, "python3", "sys.version_info = (3, 14, 0)")
    pythons = tmp_path / "pythons"
    lines = environment_made(
        checkout,
        **{"PATH": str(tools), "UV_PYTHON_INSTALL_DIR": str(pythons), "TMPDIR": str(tmp_path)},
        **mirror,
        **uv_wheel(tmp_path / "wheels"),
    )
    assert (checkout / ".venv/bin/python").resolve().is_relative_to(pythons)
    told = "python3 is unsuitable: it is Python 3.14, expected 3.10 to 3.13"
    assert lines[:-1] == [f"setup: no suitable Python ({told}); uv is downloading Python 3.13"]
    assert not list(tmp_path.glob("tmp.*"))  # uv's directory


@pytest.mark.parametrize("lacking", ["any way to uv", "uv's source"])
def test_missing_network_is_named_with_its_remedy(checkout: Path, tools: Path, tmp_path: Path, lacking: str) -> None:
    program(tools, "g++", "exit 0")
    without_venv = "; sys.modules['venv'] = None" if lacking == "any way to uv" else ""
    changed_python(tools, "python3", f"sys.version_info = (3, 14, 0){without_venv}")
    if lacking == "uv's source":
        (tools / "uv").symlink_to(UV)
    told = refusal(
        checkout, PATH=str(tools), UV_PYTHON_INSTALL_DIR=str(tmp_path), UV_PYTHON_INSTALL_MIRROR="file:///no", **NOWHERE
    )
    assert told.startswith(
        "setup: no suitable Python (python3 is unsuitable: it is Python 3.14, expected 3.10 to 3.13)"
    )
    remedy = (
        "apt-get install python3-venv" if lacking == "any way to uv" else "set PYTHON=/path/to/python (3.10 to 3.13)"
    )
    assert remedy in told
