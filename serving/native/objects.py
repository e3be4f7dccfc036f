"""Locate the native backends on this machine, and the framework libraries that they open."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rankline.serving.engines import Engine, engines
from rankline.workflows.native.build import BuildError, built_objects, object_name, shipped_objects

_LOGGER = logging.getLogger(__name__)

_WITHOUT_LIBRARY = ("identity", "nvtabular")


@dataclass(frozen=True, kw_only=True)
class NativeBackends:
    """Native backends available on this machine.

    Attributes:
        objects: backend → shared object that Triton loads.
        libraries: backend → library of its framework, for backends that need one.
        lacking: why there are no objects; "" if there are.
    """

    objects: Mapping[str, Path] = field(default_factory=dict)
    libraries: Mapping[str, Path] = field(default_factory=dict)
    lacking: str = ""


@cache
def native_backends() -> NativeBackends:
    """Return the objects from this package or the cache, after compiling them if necessary.

    Engines whose library is not installed are left out: their Python backend reports what to install.
    """
    try:
        directory = shipped_objects() or built_objects(when_absent=_say_that_it_compiles)
    except BuildError as error:
        return NativeBackends(lacking=str(error).partition("\n")[0])
    libraries = {name: path for name, engine in _engines().items() if (path := library_of(engine))}
    found = {name: directory / object_name(name) for name in (*_WITHOUT_LIBRARY, *libraries)}
    return NativeBackends(
        objects={name: path for name, path in found.items() if path.is_file()},
        libraries=libraries,
    )


def library_of(engine: Engine) -> Path | None:
    """Return the framework's library without importing the framework; None if it is not installed or has none."""
    spec = find_spec(engine.module) if engine.library else None
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(engine.library)):
            return path
    return None


def _engines() -> dict[str, Engine]:
    return {engine.backend: engine for engine in engines().values() if engine.library}


def _say_that_it_compiles() -> None:
    _LOGGER.warning("The native backends are compiled with g++ now, once.")
