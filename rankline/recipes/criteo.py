"""Criteo: predict clicks on advertisements, validating on the latest rows."""

from dataclasses import replace
from typing import Any

from rankline.recipes.base import Recipe
from rankline.training.config.train import TrainConfig
from rankline.training.models.tabular import DCNv2Config, DLRMConfig
from rankline.workflows.data.criteo.dataset import CRITEO
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig

DLRM = Recipe(
    name="criteo-dlrm",
    summary="Criteo clicks, DLRM with the sizes of NVIDIA's notebook, one epoch",
    dataset=CRITEO,
    prepare=PrepareConfig(frequency_threshold=10),
    encoding=RowsConfig(split="time"),
    train=TrainConfig(
        model=DLRMConfig(
            embedding_dim=8,
            embedding_init=0.01,
            bottom_mlp=(1024, 512, 256),
            top_mlp=(1024, 1024, 512, 256),
        ),
        batch_size=2048,
        epochs=1,
        early_stopping_patience=0,
    ),
)

# Tuned with five folds of the first 6,400 rows of Criteo's sample of 8,000. The linear terms matter most. Their penalty
# is a mean over the batch, so it has to be large.
_SMALL_NETWORK: dict[str, Any] = {
    "embedding_dim": 8,
    "embedding_init": 0.01,
    "linear_scale": 2.0,
    "embedding_dropout": 0.5,
    "l2_linear": 0.3,
}

SMALL = replace(
    DLRM,
    name="criteo-dlrm-small",
    summary="Criteo clicks, a small, regularized DLRM for thousands of rows",
    train=TrainConfig(
        model=DLRMConfig(**_SMALL_NETWORK, l2_embedding=10.0, bottom_mlp=(64, 32), top_mlp=(64,)),
        weight_decay=1.0,
        optimizer="lazy_adam",
        learning_rate=3e-3,
        batch_size=256,
        epochs=9,
        early_stopping_patience=0,
    ),
)

DCNV2 = replace(
    SMALL,
    name="criteo-dcnv2",
    summary="Criteo clicks, deep and cross network v2, for thousands of rows",
    train=replace(
        SMALL.train,
        model=DCNv2Config(**_SMALL_NETWORK, l2_embedding=3.0, hidden=(64,), cross_layers=2),
        epochs=8,
    ),
)
