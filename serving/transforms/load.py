"""Load serving transforms from a version directory."""

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rankline.serving.triton.parameters import COLUMNS_FILE
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.plan import Transform, TransformPlan, tensor_call
from rankline.workflows.plan.native_library import call_of
from rankline.workflows.plan.tensors import Tensors


def load_call(
    directory: Path, candidates: Collection[str] = (), max_list_length: int = 0
) -> tuple[Transform, Callable[[Tensors], dict[str, NDArray[Any]]]]:
    """Load the transform saved in a directory, also as a function of tensors; see `tensor_call`."""
    transform = load_transform(directory)
    if isinstance(transform, TransformPlan):
        return transform, call_of(transform, directory, candidates, max_list_length)
    return transform, tensor_call(transform, candidates, max_list_length)


def load_transform(directory: Path) -> Transform:
    if not (directory / COLUMNS_FILE).is_file():
        return TransformPlan.load(directory)
    if sys.modules.get("pandas", ...) is None:  # kept out of processes that only run plans
        del sys.modules["pandas"]
    try:
        from rankline.serving.transforms.nvtabular import UncompiledTransform
    except ImportError as error:
        raise ArtifactError(
            f"{directory} runs through NVTabular, which is not here ({error}). The container image runs compiled "
            "workflows only: export without --uncompiled, or serve it with rankline serve."
        ) from None
    return UncompiledTransform.load(directory)
