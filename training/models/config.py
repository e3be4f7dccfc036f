"""What the configs of models share: the base of all, and groups of choices that several have. Imports no framework."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import pairwise
from typing import Any, ClassVar

from rankline.training.models.frameworks import RANKLINE, TENSORFLOW, Framework
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import HISTORY, NEGATIVES, Feature, FeatureSpec
from rankline.workflows.schema.targets import BINARY, TASKS

PRECISIONS = ("float32", "float16", "bfloat16")
MOST_UNITS = 1 << 16
"""Width of a layer, a table or a list."""
_MOST_BATCH, _MOST_LAYERS = 1 << 24, 100
CORRECTED, REFERENCE = VARIANTS = ("corrected", "reference")


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """How a step is computed, which a network may be laid out for.

    Attributes:
        batch_size: rows per step.
        precision: of activations and gradients: "float32", or "float16" (with loss scaling) or "bfloat16"; weights,
            losses and scores stay float32.
        xla: compile the dense part of the model, forward and backward, with XLA (TensorFlow only).
    """

    batch_size: int = 1024
    precision: str = PRECISIONS[0]
    xla: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", most=_MOST_BATCH)
        check_choice(self, "precision", self.precision in PRECISIONS, " or ".join(PRECISIONS))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model and its choices, which are the fields of a subclass.

    The subclass says what the model is called and where its network is, so that choosing a model imports no framework.
    `TrainConfig.model` takes one from anywhere; `rankline.training.models.MODELS` lists those that come with Rankline.
    Under "Attributes:" in its docstring each field has a line, which becomes the help of its command-line option.
    """

    name: ClassVar[str]
    """What the model is called on the command line, in MLflow and in manifests."""
    network: ClassVar[str]
    """"MODULE:FUNCTION" of what builds it from a `FeatureSpec`, this config and a `StepConfig`: a Keras model as
    `rankline.training.trainers.keras` takes it, or a module as `rankline.training.trainers.torch` does."""
    framework: ClassVar[Framework] = TENSORFLOW
    """What it is trained with."""
    takes_histories: ClassVar[bool] = False
    """Whether it scores an item against a history, and takes no other rows."""
    tasks: ClassVar[tuple[str, ...]] = (BINARY,)
    """Tasks of heads that it learns, of `rankline.workflows.schema.targets.TASKS`."""
    takes_several_heads: ClassVar[bool] = False
    """Whether it learns several at once."""

    @property
    def uses_negatives(self) -> bool:
        """Whether it learns from negative histories, if there are any."""
        return False

    def training_view(self, spec: FeatureSpec) -> FeatureSpec:
        """The columns that are read to train it: negative histories only if it uses them."""
        return spec if self.uses_negatives else spec.for_scoring

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:  # noqa: ARG002  (some are for columns)
        """A lower bound on the number of weights, by the column or option that determines them."""
        return {
            entry.name: dense_weights(*units)
            for entry in fields(self)
            if isinstance(units := getattr(self, entry.name), tuple) and all(type(unit) is int for unit in units)
        }

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        """The network, with weights as they are before training; imports its framework.

        Args:
            spec: says which features there are, and how large their tables are.
            step: how it will be computed.

        Raises:
            SpecError: the model cannot be built for such features.
        """
        module, function = self.network.split(":")
        return getattr(import_module(module), function)(spec, self, step)


@dataclass(frozen=True, kw_only=True)
class TablesConfig(ModelConfig):
    """A model that is tables alone, found from all rows at once, which are kept in memory:
    `rankline.training.models.factorization.tables`.

    What is a choice about steps and gradients, such as `optimizer` and `learning_rate`, says nothing to it.

    Attributes:
        served_dim: dimensions of the vectors that are served.
        user_column: encoded column of the users; by default the one that GAUC averages over.
        item_column: encoded column of the items; by default the one that the catalogue lists.
    """

    framework: ClassVar[Framework] = RANKLINE

    served_dim: int = 32
    user_column: str = ""
    item_column: str = ""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "served_dim", most=MOST_UNITS)

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """Those of the tables."""
        return table_weights(spec, lambda _: self.served_dim + 1)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(ModelConfig):
    """What all models here have: embedding tables, one weight per id beside them, and dense layers.

    Attributes:
        embedding_dim: columns of every embedding table.
        embedding_init: ids start uniform in ± this, the reserved ones (padding, null, unseen) at zero. 0 takes what
            the framework starts from: a truncated normal with deviation 1/√dimension in
            `tf.feature_column.embedding_column`, a normal with deviation 1 in `torch.nn.Embedding`.
        embedding_dropout: share of the embeddings' columns that is dropped in training.
        l2_embedding: weight of the mean squared norm of the looked-up embeddings, added to the loss. It touches the
            rows of the batch only, so an id is held as much as its frequency asks for.
        linear_terms: add one weight per id to the logit, beside the dense layers.
        linear_scale: factor of the linear terms; they learn that much faster.
        l2_linear: as `l2_embedding`, for the linear terms.
        dropout: share of each dense layer's units that is dropped in training.
    """

    embedding_dim: int = 8
    embedding_init: float = 0.05
    embedding_dropout: float = 0.0
    l2_embedding: float = 0.0
    linear_terms: bool = True
    linear_scale: float = 1.0
    l2_linear: float = 0.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, self._least_embedding_dim, "embedding_dim", most=MOST_UNITS)
        check_choice(self, "linear_scale", 0 < self.linear_scale < math.inf, "a finite number above 0")
        check_not_negative(self, "embedding_init", "l2_embedding", "l2_linear")
        for name in ("dropout", "embedding_dropout"):
            check_choice(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")

    tasks: ClassVar[tuple[str, ...]] = TASKS
    takes_several_heads: ClassVar[bool] = True

    _least_embedding_dim: ClassVar[int] = 1

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """Those of dense layers, and of the tables."""
        linear = sum(head.width for head in spec.heads) if self.linear_terms else 0
        tables = table_weights(spec, lambda feature: self.table_width(feature) + linear)
        return {**super().num_weights(spec), **tables}

    def table_width(self, feature: Feature) -> int:  # noqa: ARG002  (the same for all but in `TabularConfig`)
        """Columns of the embedding table of `feature`."""
        return self.embedding_dim


@dataclass(frozen=True, kw_only=True)
class TabularConfig(NetworkConfig):
    """A model that puts embeddings of any width and numbers side by side. The defaults are a good MLP for MovieLens.

    Attributes:
        embedding_dim: columns of every embedding table; 0 takes NVTabular's rule, up to `embedding_dim_cap`.
        embedding_dim_cap: no embedding table has more columns; the spec may say fewer.
        hidden: units of the dense layers.
    """

    embedding_dim: int = 0
    embedding_dim_cap: int = 32
    hidden: tuple[int, ...] = (128, 128, 128)

    _least_embedding_dim: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "embedding_dim_cap", most=MOST_UNITS)
        check_units(self, "hidden")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """With the first dense layer, whose input is known."""
        return {**super().num_weights(spec), "hidden": dense_weights(self.input_width(spec), *self.hidden)}

    def input_width(self, spec: FeatureSpec) -> int:
        """Embeddings and numbers of all features side by side."""
        return sum(map(self.table_width, spec.categorical)) + len(spec.continuous)

    def table_width(self, feature: Feature) -> int:
        """Columns of the embedding table of `feature`, which may differ from one to the next."""
        return self.embedding_dim or min(feature.embedding_shape[1], self.embedding_dim_cap)


@dataclass(frozen=True, kw_only=True)
class SequentialConfig(NetworkConfig):
    """A model that scores an item against the history of a user.

    Attributes:
        hidden: units of the dense layers in front of the score.
        variant: "corrected" follows the papers, "reference" NVIDIA's SIM for TensorFlow 2.
        recency: let attention know how long ago an item was chosen, which the exact search of SIM always does, and
            summarise the history by that too.
        dot_product_features: add the dot products of the item and each summary of the history to the logit.
        user_embeddings: use the features of the user, and not of items only.
    """

    embedding_dim: int = 16
    hidden: tuple[int, ...] = (128, 128, 128)
    variant: str = CORRECTED
    recency: bool = False
    dot_product_features: bool = False
    user_embeddings: bool = True

    takes_histories: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = (BINARY,)
    takes_several_heads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self, "hidden")
        check_choice(self, "variant", self.variant in VARIANTS, " or ".join(VARIANTS))

    @property
    def is_reference(self) -> bool:
        """Whether it does as NVIDIA's SIM for TensorFlow 2."""
        return self.variant == REFERENCE


def check_units(config: ModelConfig, *names: str) -> None:
    """Refuse dense layers without units, or with too many; no layer at all is a choice."""
    for name in names:
        layers = getattr(config, name)
        check_choice(config, name, all(units >= 1 for units in layers), "whole numbers of at least 1")
        check_choice(config, name, all(units <= MOST_UNITS for units in layers), f"at most {MOST_UNITS} units each")
        if len(layers) > _MOST_LAYERS:
            raise ConfigError(f"{name} has {len(layers)} layers, expected at most {_MOST_LAYERS}.")


def dense_weights(*widths: int) -> int:
    """Weights of dense layers, each from one width to the next."""
    return sum(width * units for width, units in pairwise(widths))


def table_weights(spec: FeatureSpec, width: Callable[[Feature], int]) -> dict[str, int]:
    """Weights of the embedding tables, by column; histories share those of the item."""
    shared = {feature.name for name in (HISTORY, NEGATIVES) for feature in spec.channel(name)}
    return {
        f"column {feature.name!r}": feature.embedding_shape[0] * width(feature)
        for feature in spec.categorical
        if feature.name not in shared
    }


def check_not_negative(config: Any, *names: str) -> None:
    """Refuse numbers that are negative or not finite."""
    for name in names:
        check_choice(config, name, 0 <= getattr(config, name) < math.inf, "a finite number of at least 0")
