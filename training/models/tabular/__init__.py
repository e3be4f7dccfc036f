"""Configs of models for tabular rows, without histories."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from rankline.training.models.config import MAX_UNITS, NetworkConfig, TabularConfig, check_units
from rankline.training.models.frameworks import PYTORCH, Framework
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import FeatureSpec

_MAX_LAYERS, _MAX_EXPERTS = 100, 1_000


@dataclass(frozen=True, kw_only=True)
class MLPConfig(TabularConfig):
    """Config for a multilayer perceptron: dense layers on the concatenated embeddings and numeric features.

    Attributes:
        number_dim: width of a vector added for each number, computed from waves with learned frequencies; 0 adds none.
        number_frequencies: number of frequencies per number.
        number_scale: standard deviation of the initial frequencies; larger values distinguish finer differences.
    """

    name: ClassVar[str] = "mlp"
    network: ClassVar[str] = "rankline.training.models.tabular.network:build_mlp"

    number_dim: int = 0
    number_frequencies: int = 16
    number_scale: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "number_dim", maximum=MAX_UNITS)
        check_at_least(self, 1, "number_frequencies", maximum=MAX_UNITS)
        check_choice(self, "number_scale", 0 < self.number_scale < math.inf, "a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class DLRMConfig(NetworkConfig):
    """Config for DLRM: dot products between all embeddings and one vector computed from the numeric features.

    Attributes:
        embedding_dim: columns of every embedding table, and width of the vector computed from the numbers.
        bottom_mlp: units of the dense layers between the numbers and their vector.
        top_mlp: units of the dense layers before the score.
    """

    name: ClassVar[str] = "dlrm"
    network: ClassVar[str] = "rankline.training.models.tabular.network:build_dlrm"

    bottom_mlp: tuple[int, ...] = ()
    top_mlp: tuple[int, ...] = (128, 128, 128)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "bottom_mlp", "top_mlp")


@dataclass(frozen=True, kw_only=True)
class DCNv2Config(TabularConfig):
    """Config for DCN-V2: cross layers over embeddings and numeric features, followed by dense layers.

    Attributes:
        cross_layers: number of cross layers.
        cross_rank: rank of the cross layers' weight matrices; 0 for full rank.
    """

    name: ClassVar[str] = "dcnv2"
    network: ClassVar[str] = "rankline.training.models.tabular.network:build_dcnv2"

    cross_layers: int = 3
    cross_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "cross_layers", maximum=_MAX_LAYERS)
        check_at_least(self, 0, "cross_rank", maximum=MAX_UNITS)

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        width = self.input_width(spec)
        matrices = 2 * width * self.cross_rank if self.cross_rank else width * width
        return {**super().num_weights(spec), "cross_layers": self.cross_layers * matrices}


@dataclass(frozen=True, kw_only=True)
class DeepFMConfig(NetworkConfig):
    """Config for DeepFM: a factorization machine in parallel with dense layers, on shared embeddings.

    Attributes:
        embedding_dim: columns of every embedding table, and width of the vector of each number.
        hidden: units of the dense layers.
    """

    name: ClassVar[str] = "deepfm"
    network: ClassVar[str] = "rankline.training.models.tabular.network:build_deepfm"

    embedding_dim: int = 16
    hidden: tuple[int, ...] = (128, 128, 128)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "hidden")


@dataclass(frozen=True, kw_only=True)
class MMoEConfig(TabularConfig):
    """Config for MMoE: all labels share the same experts, and each has its own gate and tower.

    Attributes:
        hidden: units of the dense layers of each expert.
        experts: number of experts.
        tower: units of the dense layers of each head, after the experts.
    """

    name: ClassVar[str] = "mmoe"
    network: ClassVar[str] = "rankline.training.models.tabular.network:build_mmoe"

    hidden: tuple[int, ...] = (128, 64)
    experts: int = 4
    tower: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "experts", maximum=_MAX_EXPERTS)
        check_units(self, "tower")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        known = super().num_weights(spec)
        return {**known, "hidden": self.experts * known["hidden"]}


@dataclass(frozen=True, kw_only=True)
class TorchMLPConfig(TabularConfig):
    """Config for a PyTorch MLP: dense layers with batch norm on embeddings (summed for lists) and numeric features."""

    name: ClassVar[str] = "torch_mlp"
    network: ClassVar[str] = "rankline.training.models.tabular.torch_mlp:TorchMLP"
    framework: ClassVar[Framework] = PYTORCH
