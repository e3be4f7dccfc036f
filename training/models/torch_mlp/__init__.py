"""The model of NVIDIA's MovieLens notebook for PyTorch."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import TabularConfig
from rankline.training.models.frameworks import PYTORCH, Framework


@dataclass(frozen=True, kw_only=True)
class TorchMLPConfig(TabularConfig):
    """Embeddings (lists summed) and numbers side by side, then dense layers with batch normalization."""

    name: ClassVar[str] = "torch_mlp"
    network: ClassVar[str] = "rankline.training.models.torch_mlp.network:build"
    framework: ClassVar[Framework] = PYTORCH
