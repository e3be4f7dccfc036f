"""Keras layers for tabular features."""

from training.layers.dense import Dense
from training.layers.dense_features import DenseFeatures, Lists
from training.layers.interactions import Cross, DotProductInteraction
from training.layers.scalar_features import FUSED_IDS, ScalarDenseFeatures

__all__ = ["FUSED_IDS", "Cross", "Dense", "DenseFeatures", "DotProductInteraction", "Lists", "ScalarDenseFeatures"]
