"""The PyTorch engine, for TorchScript models."""

from rankline.serving.engines import Engine
from rankline.workflows.schema.model_artifact import TORCH_SCRIPT

ENGINE = Engine(
    name="pytorch",
    package=__name__,
    format=TORCH_SCRIPT,
    platform="pytorch_libtorch",
    output="{name}__{place}",  # Triton's own PyTorch backend requires the position in the name
    threads_parameter="INTRA_OP_THREAD_COUNT",
    module="torch",
    extra="torch",
)
