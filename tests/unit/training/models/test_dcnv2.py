"""DCN-V2 against its own formula."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.config import StepConfig
from rankline.training.models.dcnv2 import DCNv2Config
from rankline.training.models.layers import Cross
from tests.factories.specs import scalar_spec
from tests.oracles.tolerance import ROUNDING

SPEC = scalar_spec([(7, 2), (9, 3)], 1)
CONFIG, STEP = DCNv2Config(hidden=(5,), cross_layers=2, embedding_init=1.0, linear_terms=False), StepConfig()


def rows(num_rows: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids = {f"C{n}": tf.constant(rng.integers(3, 7, (num_rows, 1))) for n in range(2)}
    return {**ids, "I0": tf.constant(rng.normal(size=(num_rows, 1)), tf.float32)}


@pytest.mark.parametrize("rank", [0, 2])
def test_its_score_is_cross_layers_and_then_dense_ones(rank: int) -> None:
    model = replace(CONFIG, cross_rank=rank).build(SPEC, STEP)
    model.set_weights([np.random.default_rng(n).normal(size=w.shape) for n, w in enumerate(model.get_weights())])
    inputs = rows()
    tables = [model.get_layer("features").table(name).numpy() for name in ("C0", "C1")]
    start = np.concatenate([tables[0][inputs["C0"][:, 0]], tables[1][inputs["C1"][:, 0]], inputs["I0"]], axis=1)
    x = start
    for layer in model.layers:
        if isinstance(layer, Cross):
            *matrices, bias = layer.get_weights()
            assert [matrix.shape for matrix in matrices] == ([(6, 2), (2, 6)] if rank else [(6, 6)])
            x = start * (np.linalg.multi_dot([x, *matrices]) + bias) + x
    hidden, output = (layer.get_weights() for layer in model.layers if isinstance(layer, keras.layers.Dense))
    logit = np.maximum(x @ hidden[0] + hidden[1], 0) @ output[0] + output[1]
    np.testing.assert_allclose(model(inputs), 1 / (1 + np.exp(-logit)), **ROUNDING)


def test_there_are_as_many_cross_layers_as_asked_for_and_hidden_ones_may_be_left_out() -> None:
    model = replace(CONFIG, cross_layers=4, hidden=()).build(SPEC, STEP)
    assert sum(isinstance(layer, Cross) for layer in model.layers) == 4
    assert [layer.units for layer in model.layers if isinstance(layer, keras.layers.Dense)] == [1]


def test_embedding_dropout_acts_in_training_only() -> None:
    model = replace(CONFIG, embedding_dropout=0.5).build(SPEC, STEP)
    np.testing.assert_array_equal(model(rows()), model(rows()))
    assert not np.array_equal(model(rows(), training=True), model(rows(), training=True))
