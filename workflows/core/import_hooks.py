"""Hooks into the import of other packages' modules."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class LoadHook(MetaPathFinder):
    """Import hook that passes the execution of some modules to a function."""

    def __init__(
        self, names: Collection[str], load: Callable[[Callable[[ModuleType], None], ModuleType], None]
    ) -> None:
        self._names, self._load = names, load

    def install(self) -> None:
        """Activate the hook permanently. Further calls have no effect."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            # Keep the loader: TensorFlow locates its files through it.
            spec.loader.exec_module = partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Put stand-ins in place of modules that are not imported yet. After the block, an import loads the real module."""
    absent = modules.keys() - sys.modules.keys()
    for name in absent:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(modules[name])
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
