"""Amazon reviews: predict a user's next item from their previous items."""

from dataclasses import replace
from typing import Any

from rankline.recipes.base import Recipe
from rankline.training.config.train import TrainConfig
from rankline.training.models.sequential import DIENConfig, DINConfig, SIMConfig
from rankline.workflows.data.amazon.dataset import AMAZON
from rankline.workflows.preprocess import SequenceConfig

# Tuned on the second-to-last item of each user in Amazon's beauty category. The most important settings are the
# attributes, several negatives per positive, and dot products in the logit.
_NETWORK: dict[str, Any] = {
    "embedding_dim": 32,
    "hidden": (128, 64),
    "recency": True,
    "dot_product_features": True,
    "user_embeddings": False,
    "dropout": 0.3,
    "embedding_dropout": 0.3,
}

DIN = Recipe(
    name="amazon-din",
    summary="Amazon reviews, DIN: attention over histories",
    dataset=AMAZON,
    encoding=SequenceConfig(negatives=4, attributes="all"),
    train=TrainConfig(
        model=DINConfig(**_NETWORK),
        optimizer="lazy_adam",
        weight_averaging=False,
        batch_size=1024,
        epochs=2,
        early_stopping_patience=0,
    ),
)

DIEN = replace(
    DIN,
    name="amazon-dien",
    summary="Amazon reviews, DIEN: evolving interests",
    train=replace(DIN.train, model=DIENConfig(**_NETWORK)),
)

SIM = replace(
    DIN,
    name="amazon-sim",
    summary="Amazon reviews, SIM: search in long histories",
    train=replace(DIN.train, model=SIMConfig(**_NETWORK)),
)
