import re
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from rankline.workflows.core.errors import PINNED, PINNED_PACKAGES, MissingExtraError, RanklineError
from rankline.workflows.core.optional_packages import require, tensorflow_problem
from tests.harness.process.packages import leave_installed


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("cpu", "pip install 'rankline[cpu]'"),
        (PINNED, "pip install uv && python -m uv pip install --no-deps nvtabular==23.8.0"),
    ],
)
def test_missing_package_prints_the_line_that_installs_it(extra: str, line: str) -> None:
    with pytest.raises(MissingExtraError, match=re.escape(f"training needs packages that are not installed: {line}")):
        require("no_such_module_anywhere", feature="training", extra=extra)


def test_pinned_packages_are_those_of_the_dependency_group() -> None:
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8")
    group = text.partition("\npinned = [")[2].partition("\n]")[0]
    assert tuple(re.findall(r'^\s*"([^"]+)"', group, re.MULTILINE)) == PINNED_PACKAGES


def test_an_extra_that_is_there_is_no_obstacle_and_is_not_imported() -> None:
    require("this", feature="training", extra="cpu")
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (
            {"tensorflow-cpu": "2.15.1"},
            r"tensorflow-cpu 2\.15\.1 is installed, expected (\S+): pip uninstall -y tensorflow-cpu",
        ),
        (
            {"tensorflow": "2.15.1"},
            r"tensorflow 2\.15\.1 and tensorflow-cpu (\S+) are both installed, and each has overwritten files of the "
            "other: pip uninstall -y tensorflow tensorflow-cpu",
        ),
    ],
    ids=["other version", "two of them"],
)
def test_another_tensorflow_is_told_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], message: str
) -> None:
    for name, release in installed.items():
        leave_installed(tmp_path, name, release=release)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RanklineError, match=message) as error:
        require("tensorflow", feature="training 'mlp'", extra="cpu")
    told = str(error.value)
    assert told.startswith("training 'mlp': ")
    assert told.endswith(", then pip install 'rankline[cpu]'")
    found = re.search(message, told)
    assert found
    assert any(line.startswith(f"tensorflow-cpu=={found[1]};") for line in requires("rankline") or ())


def test_the_tensorflow_of_the_pins_will_do() -> None:
    pytest.importorskip("tensorflow")
    assert tensorflow_problem("cpu") is None
    require("tensorflow", feature="training", extra="cpu")
