"""What stands before a model in a model repository: a plan, or a workflow that runs through NVTabular."""

import sys
from pathlib import Path

from serving.parameters import COLUMNS_FILE
from serving.plan import Transform, TransformPlan
from workflows.errors import ArtifactError


def load_transform(directory: Path) -> Transform:
    """What was saved in a directory.

    Raises:
        ArtifactError: missing or damaged, or it runs through NVTabular and there is none.
    """
    if not (directory / COLUMNS_FILE).is_file():
        return TransformPlan.load(directory)
    if sys.modules.get("pandas", ...) is None:  # kept out of processes that only run plans
        del sys.modules["pandas"]
    try:
        from serving.through_nvtabular import UncompiledTransform
    except ImportError as error:
        raise ArtifactError(
            f"{directory} runs through NVTabular, which is not here ({error}). The container image runs compiled "
            "workflows only: export without --uncompiled, or serve it with rankline serve."
        ) from None
    return UncompiledTransform.load(directory)
