"""DIN (Zhou et al. 2018, arXiv:1706.06978)."""

from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import SequentialConfig


@dataclass(frozen=True, kw_only=True)
class DINConfig(SequentialConfig):
    """Attention of the candidate over the whole history."""

    name: ClassVar[str] = "din"
    network: ClassVar[str] = "rankline.training.models.sequential.din.network:build"
