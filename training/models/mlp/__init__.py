"""The multi-layer perceptron of NVTabular's MovieLens examples."""

from dataclasses import dataclass
from typing import ClassVar

from training.models.config import TabularConfig


@dataclass(frozen=True, kw_only=True)
class MLPConfig(TabularConfig):
    """Embeddings and numbers side by side, then dense layers."""

    name: ClassVar[str] = "mlp"
    network: ClassVar[str] = "training.models.mlp.network:build"
