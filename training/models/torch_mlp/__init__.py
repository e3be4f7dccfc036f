"""The model of NVIDIA's MovieLens notebook for PyTorch."""

from dataclasses import dataclass
from typing import ClassVar

from training.models.config import TabularConfig
from workflows.trained import PYTORCH, Backend


@dataclass(frozen=True, kw_only=True)
class TorchMLPConfig(TabularConfig):
    """Embeddings, lists summed, and numbers side by side, then dense layers with batch normalisation."""

    name: ClassVar[str] = "torch_mlp"
    network: ClassVar[str] = "training.models.torch_mlp.network:build"
    backend: ClassVar[Backend] = PYTORCH
