"""What an extra needs, worked out from the lock."""

import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rankline.requirements import requirements

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "constraints.txt").read_text(encoding="utf-8")
DECLARED = [
    "table==1.0",
    'Net_Work>=2; platform_machine == "x86_64" and extra == "cpu"',
    'net-work[cuda]>=2; extra == "gpu"',
    'plots; extra == "dev"',
]
SMALL = """
cables==3 ; python_full_version < '3.11'   # via net-work
cables==4 ; python_full_version >= '3.11'  # via net-work, plots
net-work==2.1             # via rankline (pyproject.toml)
plots==9                  # via rankline (pyproject.toml)
rows==5                   # via table, --override (workspace)
table==1.0                # via rankline (pyproject.toml)
"""


def test_what_all_need_and_what_an_extra_needs() -> None:
    assert requirements([], DECLARED, SMALL) == ["rows==5", "table==1.0"]
    versions = ["cables==3 ; python_full_version < '3.11'", "cables==4 ; python_full_version >= '3.11'"]
    assert requirements(["cpu"], DECLARED, SMALL) == [*versions, "net-work==2.1", "rows==5", "table==1.0"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("cpus", "there is no extra 'cpus', expected some of cpu, dev, gpu"),
        (
            "gpu",
            r"the lock is without 'gpu': leave it out, then pip install -c .*constraints\.txt 'net-work\[cuda\]>=2'",
        ),
    ],
)
def test_an_extra_that_is_not_in_the_lock(extra: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        requirements([extra], DECLARED, SMALL)


def test_the_command_prints_lines_for_pip() -> None:
    command = [sys.executable, "-m", "rankline.requirements"]
    done = subprocess.run([*command, "cpu,onnx"], capture_output=True, text=True, check=True)
    pinned = {requirement.name: requirement for requirement in map(Requirement, done.stdout.splitlines())}
    assert {"nvtabular", "tensorflow-cpu", "tf-keras", "onnxruntime", "nvidia-pytriton"} <= pinned.keys()
    assert not pinned.keys() & {"torch", "pytest", "ruff", "horovod", "uv"}
    assert all(str(requirement.specifier).startswith("==") for requirement in pinned.values())
    refused = subprocess.run([*command, "cpus"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("requirements: there is no extra 'cpus', expected some of cpu, dev")
    assert len(refused.stderr.splitlines()) == 1


def test_the_lock_holds_what_is_declared() -> None:
    """Each extra that it has, and no package that nothing of ours asks for."""
    extras = {*(metadata("rankline").get_all("Provides-Extra") or ())} - {"gpu"}
    declared = requires("rankline") or []
    locked = [line.partition("#")[0].rstrip() for line in LOCK.splitlines()]
    assert requirements(extras, declared, LOCK) == locked
    versions: dict[str, list[Requirement]] = {}
    for pin in map(Requirement, locked):
        versions.setdefault(re.sub(r"[-_.]+", "-", pin.name), []).append(pin)
    for requirement in map(Requirement, declared):
        if "gpu" in str(requirement.marker):
            continue
        pins = versions[re.sub(r"[-_.]+", "-", requirement.name.lower())]
        assert all(requirement.specifier.contains(str(pin.specifier).removeprefix("==")) for pin in pins), requirement
