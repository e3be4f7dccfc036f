from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from training.config import TrainConfig
from training.models import MODELS, model_builder
from training.models.base import UniformIds
from workflows.errors import ConfigError
from workflows.feature_spec import FeatureSpec
from workflows.trained import TENSORFLOW


def batch() -> dict[str, Any]:
    return {
        "userId": tf.constant([[3], [4], [2]], tf.int64),
        "movieId": tf.constant([[5], [6], [7]], tf.int64),
        "genres__values": tf.constant([[3], [4], [4]], tf.int64),
        "genres__nnzs": tf.constant([[1], [0], [2]], tf.int32),
        "age": tf.constant([[0.1], [0.2], [0.3]]),
    }


KERAS_MODELS = [name for name, model in MODELS.items() if model.backend == TENSORFLOW]


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_every_keras_model_takes_the_loaders_names_and_gives_a_probability(name: str, spec: FeatureSpec) -> None:
    model = model_builder(name)(spec, TrainConfig())
    scores = model(batch()).numpy()
    assert sorted(model.input) == sorted(batch())
    assert model.output_names == ["output"]
    assert scores.shape == (3, 1)
    assert ((scores > 0) & (scores < 1)).all()


def test_embedding_dimensions_follow_the_spec_up_to_the_cap(spec: FeatureSpec) -> None:
    model = model_builder("mlp")(spec, TrainConfig(embedding_dim_cap=12))
    shapes = {name: tuple(table.shape) for name, table in model.get_layer("features").tables.items()}
    assert shapes == {"userId": (60, 12), "movieId": (40, 12), "genres": (8, 4)}
    assert [layer.units for layer in model.layers if isinstance(layer, tf.keras.layers.Dense)] == [128, 128, 128, 1]


def test_linear_terms_add_one_weight_per_id_to_the_logit(spec: FeatureSpec) -> None:
    model = model_builder("mlp")(spec, TrainConfig(linear_terms=True, linear_scale=2.0))
    before = model(batch()).numpy()
    weights = model.get_layer("linear").tables
    weights["userId"].scatter_update(tf.IndexedSlices([[0.5]], [3]))
    weights["genres"].scatter_update(tf.IndexedSlices([[0.25]], [4]))
    after = model(batch()).numpy()
    logit = [np.log(score / (1 - score))[:, 0] for score in (before, after)]
    np.testing.assert_allclose(logit[1] - logit[0], [1.0, 0.0, 0.5], atol=1e-5)
    assert "linear" not in [layer.name for layer in model_builder("mlp")(spec, TrainConfig(linear_terms=False)).layers]


def test_l2_is_the_mean_squared_norm_of_the_looked_up_rows(spec: FeatureSpec) -> None:
    model = model_builder("mlp")(spec, TrainConfig(l2_embedding=0.5, l2_linear=0.0))
    with tf.GradientTape() as tape:
        model(batch(), training=True)
        (penalty,) = model.losses
    features = model.get_layer("features")
    assert float(penalty) == pytest.approx(0.5 * float(tf.reduce_sum(features(batch()) ** 2)) / 3, rel=1e-5)
    gradient = tape.gradient(penalty, features.tables["userId"])
    assert isinstance(gradient, tf.IndexedSlices)
    assert sorted(gradient.indices.numpy()) == [2, 3, 4]


def test_dropout_acts_in_training_only(spec: FeatureSpec) -> None:
    model = model_builder("mlp")(spec, TrainConfig(dropout=0.5, embedding_dropout=0.5, embedding_init=1.0))
    np.testing.assert_array_equal(model(batch()), model(batch()))
    assert not np.array_equal(model(batch(), training=True), model(batch(), training=True))


def test_reserved_ids_start_at_zero_and_known_ones_within_the_scale() -> None:
    table = UniformIds(0.1)((50, 4)).numpy()
    assert not table[:3].any()
    assert 0.05 < np.abs(table[3:]).max() <= 0.1
    assert UniformIds.from_config(UniformIds(0.1).get_config()).scale == 0.1


def test_without_a_scale_tables_start_as_the_embedding_columns_do(spec: FeatureSpec) -> None:
    table = model_builder("mlp")(spec, TrainConfig(embedding_init=0.0)).get_layer("features").tables["userId"].numpy()
    assert table.std() == pytest.approx(0.88 / np.sqrt(16), rel=0.15)  # a normal cut at two deviations has 0.88 of it


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mpl'. Available: mlp"):
        model_builder("mpl")
