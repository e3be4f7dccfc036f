"""What other people's modules import, and what is done when they are imported."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class LoadHook(MetaPathFinder):
    """Lets a function load some modules, once it is installed."""

    def __init__(
        self, names: Collection[str], load: Callable[[Callable[[ModuleType], None], ModuleType], None]
    ) -> None:
        self._names, self._load = names, load

    def install(self) -> None:
        """From now on; a second time changes nothing."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            # The loader stays: TensorFlow's files are found through it.
            spec.loader.exec_module = partial(self._load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """In the block, modules that nobody has imported are others; who imports one later gets the true one."""
    absent = modules.keys() - sys.modules.keys()
    for name in absent:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(modules[name])
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
