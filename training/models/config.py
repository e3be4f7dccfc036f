"""Base classes of model configs, and groups of options that several models share. Does not import a framework."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import signature
from itertools import pairwise
from typing import Any, ClassVar

from rankline.training.models.frameworks import RANKLINE, TENSORFLOW, Framework
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.core.validation import check_at_least, check_choice
from rankline.workflows.schema.feature_spec import HISTORY, NEGATIVES, Feature, FeatureSpec
from rankline.workflows.schema.targets import BINARY, TASKS

PRECISIONS = ("float32", "float16", "bfloat16")
MAX_UNITS = 1 << 16
"""Maximum width of a layer, a table or a list."""
_MAX_BATCH, _MAX_LAYERS = 1 << 24, 100
CORRECTED, REFERENCE = VARIANTS = ("corrected", "reference")


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """Configuration of a training step. Networks may adapt their structure to it.

    Attributes:
        batch_size: rows per step.
        precision: precision of activations and gradients: "float32", "float16" (with loss scaling) or "bfloat16";
            weights, losses and scores stay float32.
        xla: compile the dense part of the model, forward and backward, with XLA (TensorFlow only).
    """

    batch_size: int = 1024
    precision: str = PRECISIONS[0]
    xla: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", maximum=_MAX_BATCH)
        check_choice(self, "precision", self.precision in PRECISIONS, " or ".join(PRECISIONS))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base class of model configs. The fields of a subclass are the model's options.

    A subclass has the model's name and the location of its network, so that choosing a model does not import a
    framework. `TrainConfig.model` accepts any subclass; `rankline.training.models.MODELS` lists Rankline's own. Each
    field needs a line under "Attributes:" in the docstring, which becomes its command-line help.
    """

    name: ClassVar[str]
    """Name on the command line, in MLflow and in manifests."""
    network: ClassVar[str]
    """Function that builds the network from a `FeatureSpec`, this config and a `StepConfig`, as "MODULE:FUNCTION".

    It returns a Keras model for `rankline.training.trainers.keras`, or a module for `rankline.training.trainers.torch`.
    """
    framework: ClassVar[Framework] = TENSORFLOW
    takes_histories: ClassVar[bool] = False
    """Whether the model scores an item against a history. Such a model requires histories."""
    tasks: ClassVar[tuple[str, ...]] = (BINARY,)
    """Supported tasks of heads, a subset of `rankline.workflows.schema.targets.TASKS`."""
    takes_several_heads: ClassVar[bool] = False
    """Whether the model supports several heads."""

    @property
    def uses_negatives(self) -> bool:
        """Whether training uses negative histories if the data has them."""
        return False

    def training_view(self, spec: FeatureSpec) -> FeatureSpec:
        """Return the spec of the columns to read for training, with negative histories only if the model uses them."""
        return spec if self.uses_negatives else spec.for_scoring

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:  # noqa: ARG002  (subclasses need it)
        """Return lower bounds on the number of weights, keyed by the column or option that determines them."""
        return {
            entry.name: dense_weights(*units)
            for entry in fields(self)
            if isinstance(units := getattr(self, entry.name), tuple) and all(type(unit) is int for unit in units)
        }

    def build(self, spec: FeatureSpec, step: StepConfig) -> Any:
        """Build the untrained network, importing its framework."""
        module, _, name = self.network.partition(":")
        function = getattr(import_module(module), name, None)
        if not callable(function) or not _takes(function, 3):
            raise ConfigError(
                f"network {self.network!r} of model {self.name!r} is not a function of three arguments: feature spec, "
                "config and training step."
            )
        return function(spec, self, step)


def _takes(function: Callable[..., Any], number: int) -> bool:
    try:
        signature(function).bind(*range(number))
    except TypeError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class TablesConfig(ModelConfig):
    """Config for a model that consists only of per-id tables and is fitted with all rows in memory.

    Options about steps and gradients, such as `optimizer` and `learning_rate`, do not apply to it.

    Attributes:
        served_dim: dimension of the exported vectors.
        user_column: encoded column of the users; by default the column that GAUC groups by.
        item_column: encoded column of the items; by default the column that the catalog lists.
    """

    framework: ClassVar[Framework] = RANKLINE

    served_dim: int = 32
    user_column: str = ""
    item_column: str = ""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "served_dim", maximum=MAX_UNITS)

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        return table_weights(spec, lambda _: self.served_dim + 1)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(ModelConfig):
    """Options common to neural networks: embedding tables, a linear weight per id, and dense layers.

    Attributes:
        embedding_dim: columns of every embedding table.
        embedding_init: ids are initialized uniformly in ± this value, reserved ids (padding, null, unseen) with zero. 0
            uses the framework's default: a truncated normal with deviation 1/√dimension in
            `tf.feature_column.embedding_column`, a normal with deviation 1 in `torch.nn.Embedding`.
        embedding_dropout: fraction of the embeddings' columns to drop in training.
        l2_embedding: weight of the mean squared norm of the looked-up embeddings, added to the loss. It affects only
            the rows of the batch, so the penalty on an id grows with its frequency.
        linear_terms: add one weight per id to the logit, in parallel to the dense layers.
        linear_scale: factor on the linear terms; they learn faster by this factor.
        l2_linear: like `l2_embedding`, for the linear terms.
        dropout: fraction of each dense layer's units to drop in training.
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
        check_at_least(self, self._min_embedding_dim, "embedding_dim", maximum=MAX_UNITS)
        check_choice(self, "linear_scale", 0 < self.linear_scale < math.inf, "a finite number above 0")
        check_not_negative(self, "embedding_init", "l2_embedding", "l2_linear")
        for name in ("dropout", "embedding_dropout"):
            check_choice(self, name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")

    tasks: ClassVar[tuple[str, ...]] = TASKS
    takes_several_heads: ClassVar[bool] = True

    _min_embedding_dim: ClassVar[int] = 1

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        linear = sum(head.width for head in spec.heads) if self.linear_terms else 0
        tables = table_weights(spec, lambda feature: self.table_width(feature) + linear)
        return {**super().num_weights(spec), **tables}

    def table_width(self, feature: Feature) -> int:  # noqa: ARG002  (`TabularConfig` needs it)
        return self.embedding_dim


@dataclass(frozen=True, kw_only=True)
class TabularConfig(NetworkConfig):
    """Config for a model that concatenates numbers with embeddings, whose widths may differ. The defaults give a good
    MLP for MovieLens.

    Attributes:
        embedding_dim: columns of every embedding table; 0 uses NVTabular's rule, up to `embedding_dim_cap`.
        embedding_dim_cap: maximum number of columns of an embedding table; the spec may set a lower number.
        hidden: units of the dense layers.
    """

    embedding_dim: int = 0
    embedding_dim_cap: int = 32
    hidden: tuple[int, ...] = (128, 128, 128)

    _min_embedding_dim: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "embedding_dim_cap", maximum=MAX_UNITS)
        check_units(self, "hidden")

    def num_weights(self, spec: FeatureSpec) -> Mapping[str, int]:
        """Also count the first dense layer, whose input width is known."""
        return {**super().num_weights(spec), "hidden": dense_weights(self.input_width(spec), *self.hidden)}

    def input_width(self, spec: FeatureSpec) -> int:
        return sum(map(self.table_width, spec.categorical)) + len(spec.continuous)

    def table_width(self, feature: Feature) -> int:
        return self.embedding_dim or min(feature.embedding_shape[1], self.embedding_dim_cap)


@dataclass(frozen=True, kw_only=True)
class SequentialConfig(NetworkConfig):
    """Config for a model that scores an item against a user's history.

    Attributes:
        hidden: units of the dense layers before the score.
        variant: "corrected" follows the papers, "reference" NVIDIA's SIM for TensorFlow 2.
        recency: let attention depend on how long ago an item was chosen, as the exact search of SIM always does, and
            add a summary of the history weighted by recency.
        dot_product_features: add the dot products of the item and each summary of the history to the logit.
        user_embeddings: use the features of the user in addition to the features of items.
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
        return self.variant == REFERENCE


def check_units(config: ModelConfig, *names: str) -> None:
    """Raise `ConfigError` if an option lists too many layers or an invalid number of units. Empty lists are valid."""
    for name in names:
        layers = getattr(config, name)
        check_choice(config, name, all(units >= 1 for units in layers), "positive integers")
        check_choice(config, name, all(units <= MAX_UNITS for units in layers), f"at most {MAX_UNITS} units each")
        if len(layers) > _MAX_LAYERS:
            raise ConfigError(f"{name} has {len(layers)} layers, expected at most {_MAX_LAYERS}.")


def dense_weights(*widths: int) -> int:
    return sum(width * units for width, units in pairwise(widths))


def table_weights(spec: FeatureSpec, width: Callable[[Feature], int]) -> dict[str, int]:
    """Return the number of weights of each embedding table, keyed by column. Histories share the item's tables."""
    shared = {feature.name for name in (HISTORY, NEGATIVES) for feature in spec.channel(name)}
    return {
        f"column {feature.name!r}": feature.embedding_shape[0] * width(feature)
        for feature in spec.categorical
        if feature.name not in shared
    }


def check_numbers(features: Sequence[Feature]) -> None:
    """Raise `SpecError` if a continuous feature is a list."""
    if lists := [feature.name for feature in features if feature.is_list]:
        raise SpecError(f"continuous features {lists} are lists, expected one number per row.")


def check_not_negative(config: Any, *names: str) -> None:
    for name in names:
        check_choice(config, name, 0 <= getattr(config, name) < math.inf, "a finite number of at least 0")
