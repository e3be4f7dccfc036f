"""MovieLens: ratings of movies, a rating above 3 being a positive."""

from rankline.recipes.base import Recipe
from training.config import TrainConfig
from training.models.bayesian_fm import BayesianFMConfig
from training.models.ease import EASEConfig
from training.models.mlp import MLPConfig
from training.models.torch_mlp import TorchMLPConfig
from workflows.datasets.movielens import MOVIELENS
from workflows.datasets.movielens_history import MOVIELENS_HISTORY
from workflows.encodings import RowsConfig
from workflows.prepare_config import PrepareConfig

MLP = Recipe(
    name="movielens",
    summary="MovieLens, a tuned MLP",
    dataset=MOVIELENS,
    prepare=PrepareConfig(frequency_threshold=4),
)

SEED = Recipe(
    name="movielens-seed",
    summary="MovieLens as in NVIDIA's notebook: tables up to 512 wide, SGD, one epoch",
    dataset=MOVIELENS,
    train=TrainConfig(
        model=MLPConfig(embedding_dim_cap=512, embedding_init=0.0, linear_terms=False),
        optimizer="sgd",
        learning_rate=0.01,
        weight_averaging=False,
        batch_size=32_768,
        epochs=1,
        early_stopping_patience=0,
    ),
)

TORCH = Recipe(
    name="movielens-torch",
    summary="MovieLens in PyTorch, NVIDIA's notebook made to generalise: tables up to 512 wide, Adam",
    dataset=MOVIELENS,
    prepare=PrepareConfig(frequency_threshold=4),
    train=TrainConfig(
        model=TorchMLPConfig(embedding_dim_cap=512, embedding_dropout=0.5, linear_terms=False),
        optimizer="adam",
        learning_rate=0.01,
        weight_averaging=False,
        batch_size=32_768,
        epochs=20,
        early_stopping_patience=3,
    ),
)

# Chosen inside the training part of ml-latest-small: see docs/movielens.md.
HISTORY = Recipe(
    name="movielens-history",
    summary="MovieLens with what each user rated: a Bayesian factorisation machine",
    dataset=MOVIELENS_HISTORY,
    train=TrainConfig(model=BayesianFMConfig(), batch_size=16_384, epochs=1),
)

# Chosen inside the training part of each user's earlier ratings: see docs/movielens.md.
NEXT = Recipe(
    name="movielens-next",
    summary="MovieLens, what each user watches and likes next: a linear autoencoder of movies",
    dataset=MOVIELENS,
    encoding=RowsConfig(split="time"),
    train=TrainConfig(model=EASEConfig(recency=2.0), batch_size=16_384, epochs=1),
)
