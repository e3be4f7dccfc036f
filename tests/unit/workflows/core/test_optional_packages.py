"""Packages that may be missing, plug-ins, and modules that are loaded otherwise."""

import importlib
import logging
import re
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType

import pytest

from rankline.workflows.core.errors import PINNED, PINNED_PACKAGES, MissingExtraError, RanklineError
from rankline.workflows.core.optional_packages import LoadHook, installed, require, stand_ins
from tests.harness.process.programs import leave_installed


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        ("cpu", "pip install 'rankline[cpu]'"),
        (PINNED, "pip install uv && python -m uv pip install --no-deps nvtabular==23.8.0"),
    ],
)
def test_missing_package_prints_the_line_that_installs_it(extra: str, line: str) -> None:
    with pytest.raises(
        MissingExtraError, match=re.escape(f"training needs packages that are not installed. Run: {line}")
    ):
        require("no_such_module_anywhere", feature="training", extra=extra)


def test_pinned_packages_are_those_of_the_dependency_group() -> None:
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8")
    group = text.partition("\npinned = [")[2].partition("\n]")[0]
    assert tuple(re.findall(r'^\s*"([^"]+)"', group, re.MULTILINE)) == PINNED_PACKAGES


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (
            {"tensorflow-cpu": "2.15.1"},
            r"tensorflow-cpu 2\.15\.1 is installed, expected (\S+)\. Run: pip uninstall -y tensorflow-cpu",
        ),
        (
            {"tensorflow": "2.15.1"},
            r"tensorflow 2\.15\.1 and tensorflow-cpu (\S+) are both installed and overwrite each "
            "other's files. Run: pip uninstall -y tensorflow tensorflow-cpu",
        ),
    ],
    ids=["other version", "two of them"],
)
def test_horovod_built_for_another_tensorflow_is_reported_before_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], message: str
) -> None:
    for name, release in packages.items():
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


NAME = "a_module_of_the_test"


@pytest.fixture(autouse=True)
def module_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 'true'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_hook_loads_its_modules_once_however_often_it_is_installed() -> None:
    seen = []

    def load(as_it_is: Callable[[ModuleType], None], module: ModuleType) -> None:
        as_it_is(module)
        seen.append((module.__name__, module.value))

    hook = LoadHook({NAME}, load)
    hook.install()
    hook.install()
    assert sys.meta_path.count(hook) == 1
    assert importlib.import_module(NAME).value == "true"
    assert importlib.import_module("tests.unit") is not None
    assert seen == [(NAME, "true")]


def test_stand_in_is_gone_after_the_block_also_where_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), stand_ins({NAME: {"value": "other"}}):
        assert importlib.import_module(NAME).value == "other"
        raise ZeroDivisionError
    assert importlib.import_module(NAME).value == "true"


def test_installed_leaves_out_broken_packages_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    leave_installed(tmp_path, "absent", "[rankline.numbers]\nabsent = nothing_there:NUMBER\n")
    leave_installed(tmp_path, "text", "[rankline.numbers]\ntext = string:digits\n")
    leave_installed(tmp_path, "whole", "[rankline.numbers]\nmaxsize = sys:maxsize\n")
    with caplog.at_level(logging.WARNING):
        found = installed("rankline.numbers", int)
    assert list(found) == ["maxsize"]
    assert sorted(record.getMessage().partition(" and was skipped")[0] for record in caplog.records) == [
        "package absent: entry point 'nothing_there:NUMBER' of rankline.numbers cannot be loaded "
        "(ModuleNotFoundError: No module named 'nothing_there')",
        "package text: entry point 'string:digits' of rankline.numbers is a str, expected int",
    ]
