"""The model of NVIDIA's MovieLens notebook for PyTorch."""

from dataclasses import dataclass
from typing import ClassVar

from training.frameworks import PYTORCH, Framework
from training.models.config import TabularConfig


@dataclass(frozen=True, kw_only=True)
class TorchMLPConfig(TabularConfig):
    """Embeddings, lists summed, and numbers side by side, then dense layers with batch normalisation."""

    name: ClassVar[str] = "torch_mlp"
    network: ClassVar[str] = "training.models.torch_mlp.network:build"
    framework: ClassVar[Framework] = PYTORCH
