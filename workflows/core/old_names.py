"""Aliases for the module names used before Rankline became a single package.

Saved workflows, models registered in MLflow, and plug-in packages refer to modules such as `workflows.operators` or
`training.saved_model`. `install` lets Python find those that were public or that files refer to. Other packages called
`workflows`, `training` or `serving` take precedence, because Python asks this finder last.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

NEW_NAMES = {
    "rankline.tracking.loading": "rankline.registry.pyfunc",
    "serving.client": "rankline.serving.client",
    "serving.engines": "rankline.serving.engines",
    "serving.lowerings.expressions": "rankline.workflows.compiler.expressions",
    "serving.plan.steps": "rankline.workflows.plan.steps",
    "training.callbacks": "rankline.training.run.callbacks",
    "training.config": "rankline.training.config",
    "training.layers": "rankline.training.models.layers",
    "training.loader.tensorflow": "rankline.training.data.loader.tensorflow",
    "training.loader.torch": "rankline.training.data.loader.torch",
    "training.metrics": "rankline.training.evaluation",
    "training.models.config": "rankline.training.models.config",
    "training.onnx_model": "rankline.training.export.onnx",
    "training.saved_model": "rankline.training.export.saved_model",
    "training.torch_script": "rankline.training.export.torchscript",
    "workflows.datasets.base": "rankline.workflows.preprocess.dataset",
    "workflows.datasets.raw": "rankline.workflows.preprocess.raw",
    "workflows.datasets.table.operators": "rankline.workflows.nvt.operators",
    "workflows.errors": "rankline.workflows.core.errors",
    "workflows.heads": "rankline.workflows.schema.targets",
    "workflows.item_attributes": "rankline.workflows.nvt.operators",
    "workflows.operators": "rankline.workflows.nvt.operators",
    "workflows.stable_hashing": "rankline.workflows.nvt.operators.hashing",
    "workflows.upstream": "rankline.workflows.nvt.compat",
}
_PARENTS = {name.rpartition(".")[0] for name in NEW_NAMES} - {""} - NEW_NAMES.keys()
_PARENTS |= {name.rpartition(".")[0] for name in _PARENTS} - {""}


class _Finder:
    """A finder and loader for old module names. It avoids `importlib.abc`, which takes 9 ms to import."""

    def find_spec(self, fullname: str, *_: Sequence[str] | ModuleType | None) -> ModuleSpec | None:
        if fullname in NEW_NAMES or fullname in _PARENTS:
            return ModuleSpec(fullname, cast(Any, self), is_package=fullname in _PARENTS)
        return None

    def create_module(self, _spec: ModuleSpec) -> None:
        """Fall back to Python's default module creation."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in NEW_NAMES:
            sys.modules[module.__name__] = import_module(NEW_NAMES[module.__name__])


def install() -> None:
    """Make modules importable by their old names. Further calls have no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
