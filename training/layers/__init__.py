"""Keras layers for tabular features and for histories."""

from training.layers.attention import DinAttention, DotAttention, SmoothedMean
from training.layers.auxiliary import AuxiliaryLoss
from training.layers.dense import Dense
from training.layers.dense_features import DenseFeatures, Lists
from training.layers.evolution import DienBlock
from training.layers.interactions import Cross, DotProductInteraction
from training.layers.mlp import Mlp
from training.layers.recency import DotProductFeatures, PriorShift, Recency, RecencyMean
from training.layers.scalar_features import FUSED_IDS, ScalarDenseFeatures
from training.layers.search import HardSearch, SoftSearch
from training.layers.sequence_features import SequenceFeatures

__all__ = [
    "FUSED_IDS", "AuxiliaryLoss", "Cross", "Dense", "DenseFeatures", "DienBlock", "DinAttention", "DotAttention",
    "DotProductFeatures", "DotProductInteraction", "HardSearch", "Lists", "Mlp", "PriorShift", "Recency",
    "RecencyMean", "ScalarDenseFeatures", "SequenceFeatures", "SmoothedMean", "SoftSearch",
]  # fmt: skip
