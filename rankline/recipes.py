"""The recipes: which dataset, which model, which choices. A new one is one line in RECIPES."""

from dataclasses import dataclass, field, replace
from typing import Any

from rankline.options import Overrides
from training.config import TrainConfig
from training.models.dcnv2 import DCNv2Config
from training.models.dien import DIENConfig
from training.models.din import DINConfig
from training.models.dlrm import DLRMConfig
from training.models.mlp import MLPConfig
from training.models.sim import SIMConfig
from training.models.torch_mlp import TorchMLPConfig
from workflows.errors import ConfigError
from workflows.prepare_config import PrepareConfig
from workflows.sequence_config import SequenceConfig


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run by name.

    Attributes:
        name: also the name of the ensemble and of the MLflow experiment.
        summary: one line for the help of the verbs.
        dataset: key in `workflows.datasets.DATASETS`.
        prepare: split and encoding.
        sequence: how histories are made, for datasets that have some.
        train: model and hyperparameters.
    """

    name: str
    summary: str
    dataset: str
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def configs(self) -> tuple[Any, ...]:
        """The configs whose fields are the recipe's options, with the recipe's values."""
        return self.prepare, self.sequence, self.train

    def with_overrides(self, overrides: Overrides) -> "Recipe":
        """The recipe with options of the command line in place of its own values."""
        return replace(
            self,
            prepare=overrides.apply(self.prepare),
            sequence=overrides.apply(self.sequence),
            train=overrides.apply(self.train),
        )


# Chosen on five folds of the first 6,400 rows of Criteo's sample of 8,000. What counts most are the linear terms; the
# penalty is a mean over the batch, so it has to be large.
_SMALL_CRITEO_NETWORK: dict[str, Any] = {
    "embedding_dim": 8,
    "embedding_init": 0.01,
    "linear_scale": 2.0,
    "embedding_dropout": 0.5,
    "l2_linear": 0.3,
}
_SMALL_CRITEO = TrainConfig(
    model=DLRMConfig(**_SMALL_CRITEO_NETWORK, l2_embedding=10.0, bottom_mlp=(64, 32), top_mlp=(64,)),
    weight_decay=1.0,
    optimizer="lazy_adam",
    learning_rate=3e-3,
    batch_size=256,
    epochs=9,
    early_stopping_patience=0,
)

# Chosen on the second last item of each user of Amazon's beauty products. What counts most are the attributes, several
# negatives for each positive, and dot products in the logit.
_HISTORIES = SequenceConfig(negatives=4, attributes="all")
_AMAZON_NETWORK: dict[str, Any] = {
    "embedding_dim": 32,
    "hidden": (128, 64),
    "recency": True,
    "dot_product_features": True,
    "user_embeddings": False,
    "dropout": 0.3,
    "embedding_dropout": 0.3,
}
_AMAZON = TrainConfig(
    model=DINConfig(**_AMAZON_NETWORK),
    optimizer="lazy_adam",
    weight_averaging=False,
    batch_size=1024,
    epochs=2,
    early_stopping_patience=0,
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="movielens",
            summary="MovieLens, the MLP tuned",
            dataset="movielens",
            prepare=PrepareConfig(frequency_threshold=4),
        ),
        Recipe(
            name="movielens-seed",
            summary="MovieLens as in NVIDIA's notebook: tables up to 512 wide, SGD, one epoch",
            dataset="movielens",
            train=TrainConfig(
                model=MLPConfig(embedding_dim_cap=512, embedding_init=0.0, linear_terms=False),
                optimizer="sgd",
                learning_rate=0.01,
                weight_averaging=False,
                batch_size=32_768,
                epochs=1,
                early_stopping_patience=0,
            ),
        ),
        Recipe(
            name="movielens-torch",
            summary="MovieLens in PyTorch, NVIDIA's notebook made to generalise: tables up to 512 wide, Adam",
            dataset="movielens",
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
        ),
        Recipe(
            name="criteo-dlrm",
            summary="Criteo clicks, DLRM with the sizes of NVIDIA's notebook, one epoch",
            dataset="criteo",
            prepare=PrepareConfig(split="time", frequency_threshold=10),
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
        ),
        Recipe(
            name="criteo-dlrm-small",
            summary="Criteo clicks, a small DLRM that holds back, for thousands of rows",
            dataset="criteo",
            prepare=PrepareConfig(split="time", frequency_threshold=10),
            train=_SMALL_CRITEO,
        ),
        Recipe(
            name="criteo-dcnv2",
            summary="Criteo clicks, deep and cross network v2, for thousands of rows",
            dataset="criteo",
            prepare=PrepareConfig(split="time", frequency_threshold=10),
            train=replace(
                _SMALL_CRITEO,
                model=DCNv2Config(**_SMALL_CRITEO_NETWORK, l2_embedding=3.0, hidden=(64,), cross_layers=2),
                epochs=8,
            ),
        ),
        Recipe(
            name="amazon-sim",
            summary="Amazon reviews, SIM: search in long histories",
            dataset="amazon",
            sequence=_HISTORIES,
            train=replace(_AMAZON, model=SIMConfig(**_AMAZON_NETWORK)),
        ),
        Recipe(
            name="amazon-dien",
            summary="Amazon reviews, DIEN: interests that evolve",
            dataset="amazon",
            sequence=_HISTORIES,
            train=replace(_AMAZON, model=DIENConfig(**_AMAZON_NETWORK)),
        ),
        Recipe(
            name="amazon-din",
            summary="Amazon reviews, DIN: attention over histories",
            dataset="amazon",
            sequence=_HISTORIES,
            train=_AMAZON,
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        ConfigError: there is none; the message lists them.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}. Available: {', '.join(RECIPES)}.")
    return RECIPES[name]
