import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from rankline.workflows.core.import_hooks import LoadHook, stand_ins

NAME = "a_module_of_the_test"


@pytest.fixture(autouse=True)
def module_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 'true'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_a_hook_loads_its_modules_once_however_often_it_is_installed() -> None:
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


def test_a_stand_in_is_gone_after_the_block_also_where_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), stand_ins({NAME: {"value": "other"}}):
        assert importlib.import_module(NAME).value == "other"
        raise ZeroDivisionError
    assert importlib.import_module(NAME).value == "true"


def test_what_was_imported_has_no_stand_in() -> None:
    module = importlib.import_module(NAME)
    with stand_ins({NAME: {"value": "other"}}):
        assert importlib.import_module(NAME) is module
    assert sys.modules[NAME] is module
