"""DeepFM (Guo et al. 2017, arXiv:1703.04247)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import NetworkConfig, check_units


@dataclass(frozen=True, kw_only=True)
class DeepFMConfig(NetworkConfig):
    """A factorization machine in parallel to dense layers, on the same embeddings.

    Attributes:
        embedding_dim: columns of every embedding table, and width of the vector of each number.
        hidden: units of the dense layers.
    """

    name: ClassVar[str] = "deepfm"
    network: ClassVar[str] = "rankline.training.models.deepfm.network:build"

    embedding_dim: int = 16
    hidden: tuple[int, ...] = (128, 128, 128)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "hidden")
