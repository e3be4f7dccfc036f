"""`scripts/horovod.sh` and `rankline.launch.horovod_check`: what they say; nothing is done twice or built here."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rankline.launch.horovod_check import tensorflow_version

ROOT = Path(__file__).parents[3]
PACKAGES = Path(sysconfig.get_path("purelib"))
TOOLS = ("sh", "dirname", "sed", "make", "cmake", "g++")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script reads, and an environment with all packages of this one but Horovod."""
    for name in ("rankline/launch", "workflows/core"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "rankline" / "workflows").symlink_to("../workflows")
    for name in (
        "constraints.txt", "rankline/__init__.py", "rankline/launch/horovod_check.py", "rankline/launch/__init__.py",
        "workflows/__init__.py", "workflows/core/__init__.py", "workflows/core/errors.py",
        "workflows/core/old_names.py",
    ):  # fmt: skip
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "horovod.sh", tmp_path / "scripts")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")], check=True)
    others = tmp_path / "others"
    others.mkdir()
    for path in PACKAGES.iterdir():
        if not path.name.startswith(("horovod", "rankline", "__editable__")):
            (others / path.name).symlink_to(path)
    (site(tmp_path) / "others.pth").write_text(str(others))
    (tmp_path / ".venv" / "bin" / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    return tmp_path


def site(checkout: Path) -> Path:
    return checkout / ".venv" / PACKAGES.relative_to(sys.prefix)


def install(checkout: Path, *, built_for: str) -> None:
    """Copy this environment's Horovod into that of the checkout, noted as built for a TensorFlow."""
    pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")
    for path in PACKAGES.glob("horovod*"):
        shutil.copytree(path, site(checkout) / path.name, dirs_exist_ok=True)
    (site(checkout) / "horovod" / "metadata.json").write_text(json.dumps({"tensorflow": built_for}))


def run(checkout: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(checkout / "scripts" / "horovod.sh"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check(checkout: Path) -> str:
    command = [str(checkout / ".venv" / "bin" / "python"), "-m", "rankline.launch.horovod_check"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr


@pytest.mark.parametrize(
    ("lacking", "arguments", "message"),
    [((), ("--mpi",), "got the option '--mpi', expected mpi or none"), (("g++",), (), "apt-get install g++")],
)
def test_missing_requirement_is_reported_before_anything_is_built(
    checkout: Path, tmp_path: Path, lacking: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in set(TOOLS) - set(lacking):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    done = run(checkout, *arguments, PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_source_archive_with_another_checksum_is_rejected(checkout: Path, tmp_path: Path) -> None:
    release = re.search(r"^horovod==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert release
    (mirror := tmp_path / "mirror").mkdir()
    (mirror / f"horovod-{release[1]}.tar.gz").write_bytes(b"something else")
    cache = tmp_path / "cache"
    done = run(checkout, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(mirror), XDG_CACHE_HOME=str(cache))
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert f"horovod: the build failed; the full log is {cache}/rankline/horovod.log" in done.stderr
    assert [path.name for path in (cache / "rankline").iterdir()] == ["horovod.log"]


def test_check_says_why_horovod_does_not_work(checkout: Path) -> None:
    assert check(checkout) == "Horovod is not installed: make horovod in a checkout of Rankline\n"
    install(checkout, built_for="2.14.0")
    assert check(checkout).startswith(
        f"Horovod was built for TensorFlow 2.14.0, not {tensorflow_version()}: make horovod"
    )
    install(checkout, built_for=tensorflow_version())
    (library,) = (site(checkout) / "horovod" / "tensorflow").glob("mpi_lib*.so")
    library.unlink()
    assert "mpi_lib" in (message := check(checkout))
    assert message.endswith(": make horovod in a checkout of Rankline\n")
    assert len(message.splitlines()) == 1


def test_horovod_for_another_tensorflow_is_replaced_from_cache_once(checkout: Path) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankline"
    key = f"tensorflow{tensorflow_version()}-{sys.implementation.cache_tag}-{sysconfig.get_platform()}-gloo"
    if not list(cache.glob(f"horovod*-{key}/*.whl")):
        pytest.skip(
            f"no wheel of Horovod for {key} in {cache}: make horovod builds one, where it finds none that works"
        )
    install(checkout, built_for="2.14.0")
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    assert "was built for TensorFlow 2.14.0" in done.stdout
    assert key in done.stdout
    assert "building" not in done.stdout
    again = run(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
