import logging
from pathlib import Path

import pytest

from rankline.workflows.core.plugins import installed
from tests.harness.process.packages import leave_installed


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
    assert sorted(record.getMessage().partition(". It is")[0] for record in caplog.records) == [
        "package absent: its entry point 'nothing_there:NUMBER' of rankline.numbers cannot be loaded "
        "(ModuleNotFoundError: No module named 'nothing_there')",
        "package text: its entry point 'string:digits' of rankline.numbers is a str, expected int",
    ]
