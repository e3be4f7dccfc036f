from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models import MODELS, check_memory, check_rows, model_named
from rankline.training.models.base import UniformIds
from rankline.training.models.config import ModelConfig, NetworkConfig, StepConfig
from rankline.training.models.dcnv2 import DCNv2Config
from rankline.training.models.deepfm import DeepFMConfig
from rankline.training.models.deepfm.network import NumberVectors, PairProducts
from rankline.training.models.dlrm import DLRMConfig
from rankline.training.models.frameworks import TENSORFLOW
from rankline.training.models.mlp import MLPConfig
from rankline.training.models.mmoe import MMoEConfig
from rankline.workflows.core.errors import ConfigError, SpecError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, SpecMetadata
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from tests.harness.keras_policy import policy


def batch() -> dict[str, Any]:
    return {
        "userId": tf.constant([[3], [4], [2]], tf.int64),
        "movieId": tf.constant([[5], [6], [7]], tf.int64),
        "genres__values": tf.constant([[3], [4], [4]], tf.int64),
        "genres__nnzs": tf.constant([[1], [0], [2]], tf.int32),
        "age": tf.constant([[0.1], [0.2], [0.3]]),
    }


SMALL: dict[str, Any] = {"embedding_dim": 4, "embedding_init": 0.5}
CONFIGS: dict[str, NetworkConfig] = {
    "mlp": MLPConfig(**SMALL, hidden=(16, 8)),
    "dlrm": DLRMConfig(**SMALL, bottom_mlp=(8,), top_mlp=(16, 8)),
    "dcnv2": DCNv2Config(**SMALL, hidden=(16, 8)),
    "deepfm": DeepFMConfig(**SMALL, hidden=(16, 8)),
    "mmoe": MMoEConfig(**SMALL, hidden=(16, 8), experts=3, tower=(4,)),
}
KERAS_MODELS = [name for name, model in MODELS.items() if model.framework == TENSORFLOW and not model.takes_histories]
TAKE_LISTS = ["mlp", "dcnv2", "deepfm", "mmoe"]
STEP = StepConfig()

SCALARS = FeatureSpec(
    features=(
        Feature(name="userId", dtype="int64", cardinality=60, embedding_dim=16),
        Feature(name="movieId", dtype="int64", cardinality=40, embedding_dim=12),
        Feature(name="age", dtype="float32"),
        Feature(name="price", dtype="float32"),
        Feature(name="rating", dtype="float32"),
    ),
    channels={"categorical": ("userId", "movieId"), "continuous": ("age", "price"), "label": ("rating",)},
)


def scalars(num_rows: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(num_rows)
    return {
        "userId": tf.constant(rng.integers(3, 60, (num_rows, 1))),
        "movieId": tf.constant(rng.integers(3, 40, (num_rows, 1))),
        "age": tf.constant(rng.random((num_rows, 1), np.float32)),
        "price": tf.constant(rng.random((num_rows, 1), np.float32)),
    }


@pytest.mark.parametrize("name", KERAS_MODELS)
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_every_keras_model_takes_the_loaders_names_and_gives_a_probability(name: str, num_rows: int) -> None:
    model = CONFIGS[name].build(SCALARS, STEP)
    scores = model(scalars(num_rows)).numpy()
    assert sorted(model.input) == sorted(scalars())
    assert model.output_names == ["output"]
    assert scores.shape == (num_rows, 1)
    assert ((scores > 0) & (scores < 1)).all()


@pytest.mark.parametrize("name", TAKE_LISTS)
def test_lists_are_taken_where_embeddings_stand_side_by_side(name: str, spec: FeatureSpec) -> None:
    model = CONFIGS[name].build(spec, STEP)
    scores = model(batch()).numpy()
    assert sorted(model.input) == sorted(batch())
    assert scores.shape == (3, 1)
    assert len(np.unique(scores)) == 3


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", KERAS_MODELS)
def test_in_mixed_precision_weights_and_scores_are_float32_and_close(name: str, precision: str) -> None:
    config, step = CONFIGS[name], StepConfig(precision=precision)
    exact = config.build(SCALARS, step)
    with policy(f"mixed_{precision}"):
        mixed = config.build(SCALARS, step)
    mixed.set_weights(exact.get_weights())
    with tf.GradientTape() as tape:
        scores = mixed(scalars(64), training=True)
        loss = tf.reduce_mean(scores)
    assert {variable.dtype for variable in mixed.variables} == {tf.float32}
    assert scores.dtype == mixed.get_layer("linear").compute_dtype == tf.float32
    assert mixed.get_layer("features").compute_dtype == precision
    np.testing.assert_allclose(scores, exact(scalars(64)), atol=0.01)
    assert not np.array_equal(scores, exact(scalars(64)))
    for gradient in tape.gradient(loss, mixed.trainable_variables):
        assert np.isfinite(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient).all()


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_tables_get_sparse_gradients(name: str) -> None:
    model = CONFIGS[name].build(SCALARS, STEP)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(scalars()))
    gradients = zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True)
    sparse = {variable.name: isinstance(gradient, tf.IndexedSlices) for variable, gradient in gradients}
    assert {name for name, is_sparse in sparse.items() if is_sparse} == {
        "features/width_4_embedding:0",
        "linear/width_1_embedding:0",
    }


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_fused_linear_terms_add_one_weight_per_id_to_the_logit(name: str) -> None:
    model = replace(CONFIGS[name], linear_scale=2.0).build(SCALARS, STEP)
    rows = scalars()
    before = model(rows).numpy()
    # The tables stand in the order of the columns' names: movieId, userId.
    movies, users = rows["movieId"].numpy()[:, 0], 40 + rows["userId"].numpy()[:, 0]
    table = model.get_layer("linear").tables["width_1_embedding"]
    table.scatter_update(tf.IndexedSlices([[0.5], [0.25]], [movies[0], users[1]]))
    after = model(rows).numpy()
    logit = [np.log(score / (1 - score))[:, 0] for score in (before, after)]
    expected = 2 * (0.5 * (movies == movies[0]) + 0.25 * (users == users[1]))
    np.testing.assert_allclose(logit[1] - logit[0], expected, atol=1e-5)


def test_embedding_dimensions_follow_the_spec_up_to_the_cap(spec: FeatureSpec) -> None:
    model = MLPConfig(embedding_dim_cap=12).build(spec, STEP)
    shapes = {name: tuple(table.shape) for name, table in model.get_layer("features").tables.items()}
    assert shapes == {"userId": (60, 12), "movieId": (40, 12), "genres": (8, 4)}
    assert [layer.units for layer in model.layers if isinstance(layer, keras.layers.Dense)] == [128, 128, 128, 1]


def test_an_embedding_dim_is_that_of_every_table(spec: FeatureSpec) -> None:
    model = MLPConfig(embedding_dim=20, embedding_dim_cap=12).build(spec, STEP)
    assert {table.shape[1] for table in model.get_layer("features").tables.values()} == {20}


def test_linear_terms_add_one_weight_per_id_to_the_logit(spec: FeatureSpec) -> None:
    model = MLPConfig(linear_terms=True, linear_scale=2.0).build(spec, STEP)
    before = model(batch()).numpy()
    weights = model.get_layer("linear").tables
    weights["userId"].scatter_update(tf.IndexedSlices([[0.5]], [3]))
    weights["genres"].scatter_update(tf.IndexedSlices([[0.25]], [4]))
    after = model(batch()).numpy()
    logit = [np.log(score / (1 - score))[:, 0] for score in (before, after)]
    np.testing.assert_allclose(logit[1] - logit[0], [1.0, 0.0, 0.5], atol=1e-5)
    assert "linear" not in [layer.name for layer in MLPConfig(linear_terms=False).build(spec, STEP).layers]


def test_l2_is_the_mean_squared_norm_of_the_looked_up_rows(spec: FeatureSpec) -> None:
    model = MLPConfig(l2_embedding=0.5, l2_linear=0.0).build(spec, STEP)
    with tf.GradientTape() as tape:
        model(batch(), training=True)
        (penalty,) = model.losses
    features = model.get_layer("features")
    assert float(penalty) == pytest.approx(0.5 * float(tf.reduce_sum(features(batch()) ** 2)) / 3, rel=1e-5)
    gradient = tape.gradient(penalty, features.tables["userId"])
    assert isinstance(gradient, tf.IndexedSlices)
    assert sorted(gradient.indices.numpy()) == [2, 3, 4]


def test_dropout_acts_in_training_only(spec: FeatureSpec) -> None:
    model = MLPConfig(dropout=0.5, embedding_dropout=0.5, embedding_init=1.0).build(spec, STEP)
    np.testing.assert_array_equal(model(batch()), model(batch()))
    assert not np.array_equal(model(batch(), training=True), model(batch(), training=True))


def test_reserved_ids_start_at_zero_and_known_ones_within_the_scale() -> None:
    table = UniformIds(0.1)((50, 4)).numpy()
    assert not table[:3].any()
    assert 0.05 < np.abs(table[3:]).max() <= 0.1
    again = keras.initializers.deserialize(keras.initializers.serialize(UniformIds(0.1)))
    assert (type(again), again.scale) == (UniformIds, 0.1)


def test_without_a_scale_tables_start_as_the_embedding_columns_do(spec: FeatureSpec) -> None:
    table = MLPConfig(embedding_init=0.0).build(spec, STEP).get_layer("features").tables["userId"].numpy()
    assert table.std() == pytest.approx(0.88 / np.sqrt(16), rel=0.15)  # a normal cut at two deviations has 0.88 of it


@pytest.mark.parametrize("name", TAKE_LISTS)
def test_a_list_of_numbers_is_refused_by_name(name: str) -> None:
    lists = Feature(name="prices", dtype="float32", is_list=True, max_length=3)
    spec = FeatureSpec(
        features=(*SCALARS.features, lists), channels={**SCALARS.channels, "continuous": ("age", "prices")}
    )
    with pytest.raises(SpecError, match=r"continuous features \['prices'\] are lists, expected one number per row"):
        CONFIGS[name].build(spec, STEP)


@pytest.mark.parametrize("name", TAKE_LISTS)
def test_numbers_alone_will_do(name: str) -> None:
    spec = FeatureSpec(features=SCALARS.features, channels={**SCALARS.channels, "categorical": ()})
    model = CONFIGS[name].build(spec, STEP)
    assert model({key: scalars()[key] for key in ("age", "price")}).shape == (3, 1)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mpl'. Available: bayesian_fm, dcnv2, deepfm, dien, .*, sim, torch_mlp"):
        model_named("mpl")


HEADS = (
    Head("rating"),
    Head("price", REGRESSION, mean=100.0, deviation=7.0),
    Head("kind", MULTICLASS, ("a", "b", "c")),
)
SEVERAL = FeatureSpec(
    features=(*SCALARS.features[:3], *(Feature(name=head.column, dtype="float32") for head in HEADS)),
    channels={"categorical": ("userId", "movieId"), "continuous": ("age",), "label": ("rating", "price", "kind")},
    metadata=SpecMetadata(heads=HEADS),
)


@pytest.mark.parametrize("name", KERAS_MODELS)
def test_every_keras_model_gives_an_output_for_each_head(name: str) -> None:
    model = CONFIGS[name].build(SEVERAL, STEP)
    inputs = {key: value for key, value in scalars(5).items() if key != "price"}
    rating, price, kind = (output.numpy() for output in model(inputs))
    assert (rating.shape, price.shape, kind.shape) == ((5, 1), (5, 1), (5, 3))
    assert ((rating > 0) & (rating < 1)).all()
    assert np.abs(price - 100).max() < 70  # in the unit of the label
    np.testing.assert_allclose(kind.sum(axis=1), 1, rtol=1e-5)


def test_deepfm_multiplies_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    pairs = sum(vectors[:, i] * vectors[:, j] for i in range(3) for j in range(i))
    np.testing.assert_allclose(PairProducts()(vectors), pairs, rtol=1e-4, atol=1e-5)
    numbers, layer = np.array([[2.0, 0.0]], np.float32), NumberVectors(3)
    np.testing.assert_allclose(layer(numbers), [[2 * layer.vectors[0], 0 * layer.vectors[1]]])


def test_a_task_that_a_model_does_not_learn_is_refused() -> None:
    histories = {"target_item_features": ("movieId",), "positive_history": ("past",), "label": ("rating",)}
    spec = FeatureSpec(
        features=(
            SCALARS["movieId"],
            replace(SCALARS["movieId"], name="past", is_list=True, max_length=3),
            Feature(name="rating", dtype="float32"),
        ),
        channels=histories,
        metadata=SpecMetadata(heads=(Head("rating", REGRESSION),)),
    )
    with pytest.raises(SpecError, match="'din' learns binary, and the task of label 'rating' is regression. No model"):
        check_rows(spec, MODELS["din"]())
    with pytest.raises(SpecError, match=r"'outside' learns one label, .*'other'.*Choose one"):
        check_rows(
            replace(
                SCALARS,
                features=(*SCALARS.features, Feature(name="other", dtype="float32")),
                channels={**SCALARS.channels, "label": ("rating", "other")},
            ),
            Outside(),
        )


@dataclass(frozen=True, kw_only=True)
class Outside(ModelConfig):
    name: ClassVar[str] = "outside"
    network: ClassVar[str] = "nowhere:build"


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_counted_before_there_are_any(name: str) -> None:
    config = CONFIGS[name]
    counted = sum(config.num_weights(SCALARS).values())
    num_weights = config.build(SCALARS, STEP).count_params()
    assert num_weights / 2 < counted <= num_weights


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        (MLPConfig(hidden=(65_536, 65_536)), "hidden"),
        (MLPConfig(embedding_dim=65_536, hidden=()), "column 'userId'"),
        (DLRMConfig(bottom_mlp=(16_384, 16_384)), "bottom_mlp"),
        (DCNv2Config(embedding_dim=16_384, hidden=()), "cross_layers"),
        (MMoEConfig(experts=1_000, hidden=(2_048, 2_048)), "hidden"),
    ],
)
def test_a_model_that_does_not_fit_into_memory_is_refused(config: ModelConfig, largest: str) -> None:
    needed = 4 * sum(config.num_weights(SCALARS).values())
    check_memory(SCALARS, config, copies=1, num_bytes=needed)
    with pytest.raises(ConfigError, match=rf"needs [\d,.]+ GB .* GB for {largest}, but only 0\.0 GB are free"):
        check_memory(SCALARS, config, copies=1, num_bytes=1_000_000)
