"""SVD++ (Koren 2008, "Factorization meets the neighborhood"), with grades and attention."""

from dataclasses import dataclass
from typing import ClassVar

from training.models.config import NetworkConfig, check_units
from workflows.choices import check_at_least, check_choice
from workflows.heads import BINARY


@dataclass(frozen=True, kw_only=True)
class SVDppConfig(NetworkConfig):
    """An item against what its user rated: linear terms, a factorisation machine, kernel regression, dense layers.

    Attributes:
        embedding_dim: columns of every embedding table.
        heads: kernels that compare the item with each rated one; they divide `embedding_dim`.
        hidden: units of dense layers beside the rest; none leaves them out.
    """

    name: ClassVar[str] = "svdpp"
    network: ClassVar[str] = "training.models.svdpp.network:build"
    takes_histories: ClassVar[bool] = True
    takes_grades: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = (BINARY,)
    takes_several_heads: ClassVar[bool] = False

    embedding_dim: int = 8
    heads: int = 2
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "hidden")
        check_at_least(self, 1, "heads")
        check_choice(self, "heads", self.embedding_dim % self.heads == 0, f"a divisor of {self.embedding_dim}")
