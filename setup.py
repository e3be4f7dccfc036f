"""Puts the native backends into the wheel, where there is a g++; else it is one for any machine, without them.

All else is in pyproject.toml.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_FILE = Path(__file__).parent / "rankline" / "workflows" / "native" / "build.py"  # an sdist has no other
_SPEC = importlib.util.spec_from_file_location("rankline_native_build", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
native: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(native)
WITH_OBJECTS = sys.platform == "linux" and native.find_compiler() is not None


class BuildWithObjects(build_py):  # type: ignore[misc]  # setuptools has no annotations
    """The Python files, and what is compiled of the others."""

    def run(self) -> None:
        super().run()
        if WITH_OBJECTS and not self.editable_mode:
            native.build(Path(self.build_lib, "rankline", "workflows", "native", "objects"), native.find_compiler())


class PlatformWheel(bdist_wheel):  # type: ignore[misc]  # setuptools has no annotations
    """For this kind of machine, but for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return python, abi, sysconfig.get_platform().replace("-", "_") if WITH_OBJECTS else platform


setup(cmdclass={"build_py": BuildWithObjects, "bdist_wheel": PlatformWheel})
