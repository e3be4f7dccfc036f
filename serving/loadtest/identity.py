"""A model that returns its input, to measure the cost of Triton, gRPC and the client."""

import shutil
from pathlib import Path

from rankline.serving.server.triton_install import native_backends
from rankline.serving.triton.config import ModelConfig, to_pbtxt
from rankline.workflows.core.errors import ServerError
from rankline.workflows.native.build import object_name
from rankline.workflows.schema.tensors import Tensor

NAME = "identity"
NATIVE_NAME = "native_identity"
UNBATCHED_NAME = "native_identity_unbatched"
BACKENDS = Path(__file__).parent / "backends"
"""Backend folders of the server that serves `NAME`."""

_MAX_BATCH_SIZE = 65_536


def write_fastest_identity(repository: Path, backends: Path) -> str:
    """Write an identity model and return its name. The native model is used if this machine has its backend, otherwise
    the Python model.

    The model repository and the directory for the backend folder are created if they do not exist.
    """
    if NAME in native_backends().objects:
        write_native_identity(repository, backends)
        return NATIVE_NAME
    backends.mkdir(parents=True, exist_ok=True)
    (backends / NAME).symlink_to(BACKENDS / NAME)
    write_identity(repository)
    return NAME


def write_identity(repository: Path) -> None:
    _write(repository, NAME)


def write_native_identity(repository: Path, backends: Path) -> None:
    """Write the native model twice into a repository, with Triton's batcher and without, and its backend into a
    directory of backend folders.
    """
    found = native_backends()
    if NAME not in found.objects:
        raise ServerError(f"the native identity model is not available ({found.lacking}). Install g++.")
    (backends / NATIVE_NAME).mkdir(parents=True)
    shutil.copy(found.objects[NAME], backends / NATIVE_NAME / object_name(NATIVE_NAME))
    _write(repository, NATIVE_NAME)
    _write(repository, UNBATCHED_NAME, NATIVE_NAME, batches=False)


def _write(repository: Path, name: str, backend: str = "", *, batches: bool = True) -> None:
    x, y = (Tensor(name=tensor, dtype="int64") for tensor in "xy")
    config = ModelConfig(
        name=name,
        backend=backend or name,
        inputs=(x,),
        outputs=(y,),
        max_batch_size=_MAX_BATCH_SIZE,
        batches=batches,
    )
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(to_pbtxt(config), encoding="utf-8")
