"""A model that returns its input: what a request to it takes is the cost of Triton, gRPC and the client alone."""

from pathlib import Path

from serving.model_config import ModelConfig, to_pbtxt
from workflows.tensors import Tensor

NAME = "identity"
BACKENDS = Path(__file__).parent / "backends"
"""To be given to the server that serves it."""

_MAX_BATCH_SIZE = 65_536


def write_identity(repository: Path) -> None:
    """Write the model into a Triton model repository.

    Args:
        repository: directory; made when it is missing.
    """
    x, y = (Tensor(name=name, dtype="int64") for name in "xy")
    config = ModelConfig(name=NAME, backend=NAME, inputs=(x,), outputs=(y,), max_batch_size=_MAX_BATCH_SIZE)
    (repository / NAME / "1").mkdir(parents=True)
    (repository / NAME / "config.pbtxt").write_text(to_pbtxt(config), encoding="utf-8")
