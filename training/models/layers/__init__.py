"""Keras layers for tabular features and for histories."""

from rankline.training.models.layers.attention import DinAttention, DotAttention, SmoothedMean
from rankline.training.models.layers.dense_features import DenseFeatures, Lists
from rankline.training.models.layers.history import (
    DotProductFeatures,
    HardSearch,
    NegativeSamplingCorrection,
    Recency,
    RecencyMean,
    SoftSearch,
)
from rankline.training.models.layers.interactions import Cross, DotProductInteraction
from rankline.training.models.layers.mlp import Dense, Mlp
from rankline.training.models.layers.recurrent import AuxiliaryLoss, DienBlock
from rankline.training.models.layers.scalar_features import FUSED_IDS, ScalarDenseFeatures
from rankline.training.models.layers.sequence_features import SequenceFeatures

__all__ = [
    "FUSED_IDS", "AuxiliaryLoss", "Cross", "Dense", "DenseFeatures", "DienBlock", "DinAttention", "DotAttention",
    "DotProductFeatures", "DotProductInteraction", "HardSearch", "Lists", "Mlp", "NegativeSamplingCorrection",
    "Recency", "RecencyMean", "ScalarDenseFeatures", "SequenceFeatures", "SmoothedMean", "SoftSearch",
]  # fmt: skip
