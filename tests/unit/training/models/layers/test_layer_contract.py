"""What holds of every layer: it comes back from its config, and computes the same in XLA, in half precision, and as
a functional model, whose shapes are known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers import (
    Cross,
    DenseFeatures,
    DinAttention,
    DotAttention,
    DotProductInteraction,
    HardSearch,
    Mlp,
    ScalarDenseFeatures,
    SmoothedMean,
    SoftSearch,
)
from rankline.training.models.layers.attention import DinUnit
from rankline.training.models.layers.history import DotProductFeatures, NegativeSamplingCorrection, Recency, RecencyMean
from rankline.training.models.layers.interactions import PeriodicNumbers
from rankline.training.models.layers.mlp import Dense, Prelu
from rankline.training.models.layers.recurrent import Augru, AuxiliaryLoss, DienBlock, Gru
from rankline.workflows.core.errors import ConfigError
from tests.harness.process.frameworks import policy
from tests.oracles.tolerance import ROUNDING

PACKAGE = "rankline.training.models.layers"
fc = tf.feature_column
PRESENT = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]], np.float32)


def random(*shape: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng([seed, *shape]).normal(size=shape), tf.float32)


NUMBERS, HISTORY, TARGETS = random(3, 4), random(3, 4, 5) * PRESENT[..., None], random(3, 2, 5)
IDS = {name: tf.constant([[0], [2], [1]], tf.int64) for name in "abc"}
COLUMNS = [fc.embedding_column(fc.categorical_column_with_identity(name, 5), 4) for name in "abc"]
ATTENTION = tf.nn.softmax(random(3, 2, 4))
STATES = [random(3, 1, 7), random(3, 4, 5), HISTORY, random(3, 4, 5, seed=1), PRESENT]

LAYERS: dict[str, tuple[Callable[..., Any], Any]] = {
    "augru": (lambda **of: Augru(4, **of), [HISTORY, ATTENTION]),
    "augru, reference": (lambda **of: Augru(4, True, **of), [HISTORY, ATTENTION]),
    "auxiliary loss": (lambda **of: AuxiliaryLoss((6, 4), 0.2, True, **of), STATES),
    "cross": (Cross, [NUMBERS, NUMBERS + 1]),
    "cross of a rank": (lambda **of: Cross(2, **of), [NUMBERS, NUMBERS + 1]),
    "dense": (lambda **of: Dense(4, activation="relu", **of), NUMBERS),
    "dense features": (lambda **of: DenseFeatures(COLUMNS, **of), IDS),
    "dien": (lambda **of: DienBlock(4, **of), [TARGETS, HISTORY, PRESENT]),
    "dien, reference": (lambda **of: DienBlock(4, True, **of), [TARGETS, HISTORY, PRESENT]),
    "din attention": (lambda **of: DinAttention((6, 4), **of), [TARGETS, HISTORY, PRESENT]),
    "din unit": (lambda **of: DinUnit((6, 4), **of), [TARGETS, HISTORY, PRESENT]),
    "dot attention": (DotAttention, [TARGETS, HISTORY, PRESENT]),
    "dot product features": (lambda **of: DotProductFeatures(1, **of), [TARGETS, HISTORY[:, 0]]),
    "gru": (lambda **of: Gru(4, **of), [HISTORY, PRESENT]),
    "hard search": (lambda **of: HardSearch(2, **of), tf.cast(ATTENTION > 0.3, tf.float32)),
    "interaction": (lambda **of: DotProductInteraction(self_interaction=True, pad_to=8, **of), HISTORY),
    "mlp": (lambda **of: Mlp((3, 2), "sigmoid", 0.1, **of), NUMBERS),
    "periodic numbers": (lambda **of: PeriodicNumbers(2, 3, 0.1, **of), NUMBERS),
    "prelu": (Prelu, NUMBERS),
    "prior shift": (lambda **of: NegativeSamplingCorrection(4, **of), NUMBERS),
    "recency": (lambda **of: Recency(6, **of), HISTORY),
    "recency mean": (lambda **of: RecencyMean(6, **of), [HISTORY, PRESENT]),
    "scalar features": (lambda **of: ScalarDenseFeatures(COLUMNS, **of), IDS),
    "scalar features apart": (lambda **of: ScalarDenseFeatures(COLUMNS, fused=False, **of), IDS),
    "scalar features, stacked": (lambda **of: ScalarDenseFeatures(COLUMNS, aggregation="stack", **of), IDS),
    "smoothed mean": (SmoothedMean, [HISTORY, PRESENT]),
    "soft search": (lambda **of: SoftSearch(2, **of), [ATTENTION, PRESENT]),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def assert_close(found: Any, expected: Any, **tolerance: float) -> None:
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(tf.cast(one, tf.float32), tf.cast(other, tf.float32), **tolerance)


def test_contract_has_every_layer() -> None:
    made = {type(make()) for make, _ in LAYERS.values()}
    own = {kind for kind in keras.layers.Layer.__subclasses__() if kind.__module__.startswith(PACKAGE)}
    missing = {kind.__name__ for kind in own - made if not kind.__name__.startswith("_")}
    assert missing == {"SequenceFeatures"}  # which has a file of its own


@every_layer
def test_layer_comes_back_from_its_config_and_scores_the_same(name: str) -> None:
    make, inputs = LAYERS[name]
    layer = make(name="x")
    expected = layer(inputs)
    again = type(layer).from_config(layer.get_config())
    again(inputs)
    again.set_weights(layer.get_weights())
    assert again.get_config() == layer.get_config()
    assert_close(again(inputs), expected, rtol=0, atol=0)


@pytest.mark.slow
@every_layer
def test_layer_gives_the_same_in_xla(name: str) -> None:
    make, inputs = LAYERS[name]
    layer = make()
    expected = layer(inputs)
    assert_close(tf.function(lambda: layer(inputs), jit_compile=True, autograph=False)(), expected, **ROUNDING)


@every_layer
def test_layer_comes_close_in_half_precision_on_float32_weights(name: str, half: str) -> None:
    make, inputs = LAYERS[name]
    mixed = make()
    found = mixed(inputs)
    assert {weight.dtype for weight in mixed.weights} <= {tf.float32}
    with policy("float32"):
        single = make()
        single(inputs)
        single.set_weights(mixed.get_weights())
        assert_close(found, single(inputs), rtol=0.03, atol=0.05)


@every_layer
def test_layer_is_part_of_a_functional_model_with_known_shapes(name: str) -> None:
    make, inputs = LAYERS[name]
    given = tf.nest.map_structure(lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype), inputs)
    layer = make()
    symbolic = layer(given)
    expected = layer(inputs)
    for one, other in zip(tf.nest.flatten(symbolic), tf.nest.flatten(expected), strict=True):
        assert tuple(one.shape)[1:] == tuple(other.shape)[1:]
    assert_close(keras.Model(given, symbolic)(inputs), expected, **ROUNDING)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DotProductInteraction(pad_to=0), "pad_to is 0"),
        (lambda: AuxiliaryLoss(()), "aux_hidden is empty"),
        (lambda: SoftSearch(0), "num_searched is 0"),
        (lambda: HardSearch(0), "num_searched is 0"),
        (lambda: Mlp((5,), "tanh"), "activation 'tanh'"),
    ],
)
def test_layer_refuses_options_out_of_range(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
