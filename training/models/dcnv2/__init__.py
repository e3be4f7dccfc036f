"""DCN-V2 (Wang et al. 2020, arXiv:2008.13535)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MOST_UNITS, TabularConfig
from rankline.workflows.core.validation import check_at_least
from rankline.workflows.schema.feature_spec import FeatureSpec

_MOST_LAYERS = 100


@dataclass(frozen=True, kw_only=True)
class DCNv2Config(TabularConfig):
    """Cross layers over embeddings and numbers, then dense layers.

    Attributes:
        cross_layers: number of cross layers.
        cross_rank: rank of the cross layers' weight matrices; 0 for full rank.
    """

    name: ClassVar[str] = "dcnv2"
    network: ClassVar[str] = "rankline.training.models.dcnv2.network:build"

    cross_layers: int = 3
    cross_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "cross_layers", most=_MOST_LAYERS)
        check_at_least(self, 0, "cross_rank", most=MOST_UNITS)

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        width = self.input_width(spec)
        matrices = 2 * width * self.cross_rank if self.cross_rank else width * width
        return {**super().num_weights(spec), "cross_layers": self.cross_layers * matrices}
