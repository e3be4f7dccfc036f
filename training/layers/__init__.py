"""Keras layers for tabular features and for histories."""

from training.layers.attention import DinAttention, DinUnit, DotAttention, SmoothedMean, masked_softmax
from training.layers.auxiliary import AuxiliaryLoss, auxiliary_loss
from training.layers.dense import Dense
from training.layers.dense_features import DenseFeatures, Lists
from training.layers.evolution import Augru, DienBlock, Gru
from training.layers.interactions import Cross, DotProductInteraction
from training.layers.mlp import Mlp, Prelu
from training.layers.recency import DotProductFeatures, PriorShift, Recency, RecencyMean
from training.layers.scalar_features import FUSED_IDS, ScalarDenseFeatures
from training.layers.search import HardSearch, SoftSearch
from training.layers.sequence_features import PaddedLists, SequenceFeatures

__all__ = [
    "FUSED_IDS",
    "Augru",
    "AuxiliaryLoss",
    "Cross",
    "Dense",
    "DenseFeatures",
    "DienBlock",
    "DinAttention",
    "DinUnit",
    "DotAttention",
    "DotProductFeatures",
    "DotProductInteraction",
    "Gru",
    "HardSearch",
    "Lists",
    "Mlp",
    "PaddedLists",
    "Prelu",
    "PriorShift",
    "Recency",
    "RecencyMean",
    "ScalarDenseFeatures",
    "SequenceFeatures",
    "SmoothedMean",
    "SoftSearch",
    "auxiliary_loss",
    "masked_softmax",
]
