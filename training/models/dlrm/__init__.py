"""DLRM (Naumov et al. 2019, arXiv:1906.00091)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import NetworkConfig, check_units


@dataclass(frozen=True, kw_only=True)
class DLRMConfig(NetworkConfig):
    """Dot products of all pairs of vectors: the embeddings, and one vector computed from the numbers.

    Attributes:
        embedding_dim: columns of every embedding table, and width of the vector computed from the numbers.
        bottom_mlp: units of the dense layers between the numbers and their vector.
        top_mlp: units of the dense layers before the score.
    """

    name: ClassVar[str] = "dlrm"
    network: ClassVar[str] = "rankline.training.models.dlrm.network:build"

    bottom_mlp: tuple[int, ...] = ()
    top_mlp: tuple[int, ...] = (128, 128, 128)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "bottom_mlp", "top_mlp")
