"""Networks over embeddings of ids and numeric features."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.models.base import (
    apply_dropout,
    dense_layers,
    embedded,
    embedding_columns,
    keras_inputs,
    number_columns,
    penalty,
    scalar_layer,
    scores,
)
from rankline.training.models.config import StepConfig
from rankline.training.models.layers import Cross, Dense, DotProductInteraction
from rankline.training.models.layers.interactions import PeriodicNumbers
from rankline.training.models.tabular import DCNv2Config, DeepFMConfig, DLRMConfig, MLPConfig, MMoEConfig
from rankline.workflows.core.errors import SpecError
from rankline.workflows.schema.feature_spec import FeatureSpec

HALF_PRECISION_MULTIPLE = 16
"""GPU matrix units in half precision need matrix sizes that are multiples of this."""


def build_mlp(spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    """Build the multilayer perceptron of NVTabular's MovieLens examples."""
    inputs = keras_inputs(spec)
    has_vectors = bool(model.number_dim and spec.continuous)
    x = _with_vectors(inputs, spec, model, step) if has_vectors else embedded(inputs, spec, model, step)
    x = dense_layers(x, model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))


def _with_vectors(inputs: Any, spec: FeatureSpec, model: MLPConfig, step: StepConfig) -> Any:
    numbers = scalar_layer(number_columns(spec.continuous), step, name="numbers")(inputs)
    vectors = PeriodicNumbers(model.number_dim, model.number_frequencies, model.number_scale)(numbers)
    parts = [numbers, tf.cast(vectors, numbers.dtype)]
    if spec.categorical:
        parts.insert(0, embedded(inputs, spec, model, step, with_numbers=False))
    return tf.concat(parts, axis=1)


def build_dlrm(spec: FeatureSpec, model: DLRMConfig, step: StepConfig) -> Any:
    """Build DLRM (Naumov et al. 2019, arXiv:1906.00091), as in NVIDIA's notebook on Keras on GPUs.

    numbers ─▶ bottom_mlp ─▶ one more vector ─┬────────────────────────────────────┐
    ids ─▶ embeddings, all of one width ──────┴─▶ dot product of each pair ─▶ concatenated ─▶ top_mlp ─▶ heads
    """
    _check(spec)
    inputs = keras_inputs(spec)
    embeddings = scalar_layer(
        embedding_columns(spec.categorical, model),
        step,
        aggregation="stack",
        activity_regularizer=penalty(model.l2_embedding),
        name="features",
    )(inputs)
    numbers = scalar_layer(number_columns(spec.continuous), step, name="numbers")(inputs)
    x = head(embeddings, numbers, model, step)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))


def head(embeddings: Any, numbers: Any, model: DLRMConfig, step: StepConfig) -> Any:
    """Build the part of DLRM between the embedding lookups and the logits.

    In half precision the input of the first layer of `top_mlp` is padded with zeros to a multiple of
    `HALF_PRECISION_MULTIPLE`: 27 vectors of width 8 give a width of 368 instead of 359. The weights of the padding stay
    zero and all others have the same initial values, so padding changes only the number of weights.
    """
    dense = dense_layers(numbers, model.bottom_mlp, model.dropout)
    dense = Dense(model.embedding_dim)(dense)
    embeddings = apply_dropout(embeddings, model.embedding_dropout)
    vectors = tf.concat([embeddings, dense[:, None]], axis=1)
    pad_to = 1 if step.precision == "float32" else HALF_PRECISION_MULTIPLE
    x = DotProductInteraction(pad_to=pad_to)(vectors, beside=dense)
    num_pairs = vectors.shape[1] * (vectors.shape[1] - 1) // 2
    initializer = ZerosForPadding(x.shape[1] - num_pairs - dense.shape[1])
    return dense_layers(x, model.top_mlp, model.dropout, first_initializer=initializer)


@keras.utils.register_keras_serializable("rankline")
class ZerosForPadding(keras.initializers.Initializer):  # type: ignore[misc]  # tensorflow has no types
    """A Glorot uniform initializer for kernels that sets the last `padding` rows to zero."""

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def __call__(self, shape: Any, dtype: Any = tf.float32, **_: Any) -> Any:
        drawn = keras.initializers.GlorotUniform()((shape[0] - self.padding, shape[1]), dtype=dtype)
        return tf.pad(drawn, [[0, self.padding], [0, 0]])

    def get_config(self) -> dict[str, Any]:
        return {"padding": self.padding}


def _check(spec: FeatureSpec) -> None:
    if lists := [feature.name for feature in (*spec.categorical, *spec.continuous) if feature.is_list]:
        raise SpecError(f"model 'dlrm' requires one value per row, but {lists} are lists. Use model 'mlp' or 'dcnv2'.")
    if not spec.categorical or not spec.continuous:
        raise SpecError(
            f"model 'dlrm' requires categorical and continuous features, got {len(spec.categorical)} and "
            f"{len(spec.continuous)}. Use model 'mlp' or 'dcnv2'."
        )


def build_dcnv2(spec: FeatureSpec, model: DCNv2Config, step: StepConfig) -> Any:
    """Build the stacked variant of DCN-V2 (Wang et al. 2020, arXiv:2008.13535).

    The dense layers follow the cross layers and see their products; without `hidden` it is the cross network alone.
    """
    inputs = keras_inputs(spec)
    start = x = embedded(inputs, spec, model, step)
    for _ in range(model.cross_layers):
        x = Cross(model.cross_rank)([start, x])
    x = dense_layers(x, model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(x, inputs, spec, model, step))


def build_deepfm(spec: FeatureSpec, model: DeepFMConfig, step: StepConfig) -> Any:
    """Build DeepFM (Guo et al. 2017, arXiv:1703.04247): a factorization machine and dense layers on shared embeddings.

    ids ─▶ embeddings ────────┬─▶ sum of the products of all pairs ─┐
    numbers ─▶ vector × value ┴─▶ concatenated ─▶ hidden ───────────┴─▶ heads

    The paper sums the products. Here each head weights the columns of their sum, because adding the same number to all
    classes would have no effect. The weights of single ids, the paper's first order, are the `linear_terms`.
    """
    inputs = keras_inputs(spec)
    vectors, beside = [], []
    if spec.categorical:
        ids = embedded(inputs, spec, model, step, with_numbers=False)
        vectors.append(tf.reshape(ids, (-1, len(spec.categorical), model.embedding_dim)))
        beside.append(ids)
    if spec.continuous:
        numbers = scalar_layer(number_columns(spec.continuous), step, name="numbers")(inputs)
        vectors.append(NumberVectors(model.embedding_dim)(numbers))
        beside.append(numbers)
    products = PairProducts()(_joined(vectors))
    deep = dense_layers(_joined(beside), model.hidden, model.dropout)
    return keras.Model(inputs=inputs, outputs=scores(tf.concat([deep, products], 1), inputs, spec, model, step))


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


class NumberVectors(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """Multiplies each numeric feature by a learned vector: (N, M) → (N, M, dimension)."""

    def __init__(self, dimension: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dimension = dimension

    def build(self, shape: Any) -> None:
        initializer = keras.initializers.TruncatedNormal(stddev=self.dimension**-0.5)
        self.vectors = self.add_weight("vectors", (shape[-1], self.dimension), initializer=initializer)

    def call(self, numbers: Any) -> Any:
        return numbers[..., None] * self.vectors

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dimension": self.dimension}


class PairProducts(keras.layers.Layer):  # type: ignore[misc]  # tensorflow has no types
    """The sum of the element-wise products of all pairs of vectors: (N, F, D) → (N, D)."""

    def call(self, vectors: Any) -> Any:
        # Rendle 2010, "Factorization Machines", lemma 3.1: takes linear time.
        return 0.5 * (tf.square(tf.reduce_sum(vectors, axis=1)) - tf.reduce_sum(tf.square(vectors), axis=1))


def build_mmoe(spec: FeatureSpec, model: MMoEConfig, step: StepConfig) -> Any:
    """Build MMoE (Ma et al. 2018, "Modeling Task Relationships in Multi-task Learning").

    embeddings, numbers ─┬─▶ experts ─▶ mean weighted by ─┬─▶ tower ─▶ head    once per head
                         └─▶ gate, softmax ───────────────┘
    """
    inputs = keras_inputs(spec)
    x = embedded(inputs, spec, model, step)
    experts = tf.stack([dense_layers(x, model.hidden, model.dropout) for _ in range(model.experts)], axis=1)
    towers = []
    for _ in spec.heads:
        gate = keras.layers.Dense(model.experts, activation="softmax")(x)
        mixed = tf.reduce_sum(experts * gate[..., None], axis=1)
        towers.append(dense_layers(mixed, model.tower, model.dropout))
    return keras.Model(inputs=inputs, outputs=scores(towers, inputs, spec, model, step))
