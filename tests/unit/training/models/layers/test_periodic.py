import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.recipes.table_defaults import table_defaults
from rankline.training.models.config import StepConfig
from rankline.training.models.layers.periodic import PeriodicNumbers
from rankline.training.models.mlp import MLPConfig
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec

NUMBERS = np.array([[0.0, 1.0], [2.0, -0.5], [0.25, 3.0]], np.float32)


def test_each_number_becomes_the_vector_of_its_own_waves() -> None:
    layer = PeriodicNumbers(dimension=3, frequencies=4, scale=0.5)
    vectors = layer(NUMBERS).numpy().reshape(3, 2, 3)
    for number in range(2):
        phase = 2 * np.pi * NUMBERS[:, number : number + 1] * layer.rates.numpy()[number]
        waves = np.concatenate([np.cos(phase), np.sin(phase)], axis=1)
        expected = np.maximum(waves @ layer.kernel.numpy()[number] + layer.bias.numpy()[number], 0)
        np.testing.assert_allclose(vectors[:, number], expected, rtol=1e-4, atol=1e-5)


def test_it_comes_back_from_its_config_and_computes_in_float32() -> None:
    layer = PeriodicNumbers.from_config(PeriodicNumbers(2, 3, 0.1).get_config())
    assert (layer.dimension, layer.frequencies, layer.scale, layer.compute_dtype) == (2, 3, 0.1, "float32")
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        assert PeriodicNumbers(2, 3, 0.1)(NUMBERS).dtype == tf.float32
    finally:
        keras.mixed_precision.set_global_policy(before)


@pytest.mark.parametrize("ids", [(), ("city",)])
def test_a_perceptron_sees_the_vectors_beside_numbers_and_ids(ids: tuple[str, ...]) -> None:
    spec = FeatureSpec(
        features=(
            Feature(name="city", dtype="int64", cardinality=9, embedding_dim=4),
            Feature(name="age", dtype="float32"),
            Feature(name="sold", dtype="float32"),
        ),
        channels={"categorical": ids, "continuous": ("age",), "label": ("sold",)},
    )
    model = MLPConfig(number_dim=5, hidden=(8,), embedding_dim=2).build(spec, StepConfig())
    kernel = next(weight for weight in model.weights if weight.shape[-1] == 8 and len(weight.shape) == 2)
    assert kernel.shape[0] == 1 + 5 + 2 * len(ids)
    inputs = {"city": tf.constant([[3], [4]], tf.int64), "age": tf.constant([[0.5], [2.0]])}
    assert model({name: inputs[name] for name in model.input}).shape == (2, 1)


@pytest.mark.parametrize("choices", [{"number_dim": -1}, {"number_frequencies": 0}, {"number_scale": 0.0}])
def test_choices_out_of_range_are_refused(choices: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(choices))):
        MLPConfig(**choices)  # type: ignore[arg-type]


def test_the_fewer_the_rows_the_smaller_the_batches_and_the_more_they_are_held() -> None:
    sizes = [table_defaults(rows) for rows in (1_000, 20_000, 200_000, 20_000_000)]
    batches, dropouts = [run.batch_size for run in sizes], [run.model.dropout for run in sizes]  # type: ignore[attr-defined]
    assert batches == sorted(batches)
    assert dropouts == sorted(dropouts, reverse=True)
