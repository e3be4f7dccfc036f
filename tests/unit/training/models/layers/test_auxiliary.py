"""DIEN's auxiliary loss, and what the reference gets wrong about it."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankline.training.models.layers.recurrent import AuxiliaryLoss, auxiliary_loss
from tests.oracles.tolerance import ROUNDING

NUM_ROWS, NUM_STEPS, UNITS, WIDTH = 3, 4, 5, 2
PRESENT = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]], np.float32)
OVER_ALL = pytest.mark.parametrize("over_all", [False, True])


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def example() -> list[Any]:
    shapes = ((NUM_ROWS, 1, 7), (NUM_ROWS, NUM_STEPS, UNITS), *[(NUM_ROWS, NUM_STEPS, WIDTH)] * 2)
    return [*(tf.constant(random(*shape, seed=n)) for n, shape in enumerate(shapes)), tf.constant(PRESENT)]


@OVER_ALL
def test_auxiliary_loss_is_the_mean_over_the_cells_that_count_or_over_all(over_all: bool) -> None:
    clicked, not_clicked = random(NUM_ROWS, NUM_STEPS), random(NUM_ROWS, NUM_STEPS, seed=1)
    got = auxiliary_loss(clicked, not_clicked, PRESENT, over_all=over_all)
    cells = -np.log(1 / (1 + np.exp(-clicked))) - np.log(1 - 1 / (1 + np.exp(-not_clicked)))
    wanted = np.sum(cells * PRESENT) / (PRESENT.size if over_all else PRESENT.sum())
    np.testing.assert_allclose(got, wanted, **ROUNDING)


@OVER_ALL
@pytest.mark.parametrize("size", [1e4, -1e4, np.inf])
def test_auxiliary_loss_is_finite_for_any_logit(over_all: bool, size: float) -> None:
    """Fault 2 of the reference: probabilities give log(0), and NaN × 0 survives a mask."""
    logits = tf.constant(np.where(PRESENT > 0, np.clip(size, -1e4, 1e4), size).astype(np.float32))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = auxiliary_loss(logits, logits, PRESENT, over_all=over_all)
    assert np.isfinite(loss)
    assert loss < 1.1e4
    gradient = tape.gradient(loss, logits).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[PRESENT == 0].any()


@OVER_ALL
def test_auxiliary_loss_is_zero_without_a_cell_that_counts(over_all: bool) -> None:
    for num_steps in (0, 2):
        logits = tf.ones((3, num_steps))
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = auxiliary_loss(logits, logits, tf.zeros((3, num_steps)), over_all=over_all)
        assert loss == 0
        np.testing.assert_array_equal(tape.gradient(loss, logits), np.zeros((3, num_steps)))


@pytest.mark.parametrize("reference", [False, True])
def test_layer_holds_states_against_the_items_after_them(reference: bool) -> None:
    inputs = example()
    layer = AuxiliaryLoss((6, 4), weight=0.5, reference=reference)
    np.testing.assert_array_equal(layer(inputs), inputs[0])
    assert not layer.losses
    np.testing.assert_array_equal(layer(inputs, training=True), inputs[0])
    (got,) = layer.losses
    weights = layer.get_weights()

    def logit(state: Any, item: Any) -> Any:
        x = np.concatenate([state, item])
        for kernel, bias in (weights[0:2], weights[2:4]):
            x = 1 / (1 + np.exp(-(x @ kernel + bias)))
        return (x @ weights[4] + weights[5])[0]

    _, states, items, negatives, present = (x.numpy() for x in inputs)
    losses = []
    for row, step in np.ndindex(NUM_ROWS, NUM_STEPS - 1):
        if present[row, step + 1] and (present[row, step] or reference):
            clicked, not_clicked = (logit(states[row, step], x[row, step + 1]) for x in (items, negatives))
            losses.append(np.log1p(np.exp(-clicked)) + np.log1p(np.exp(not_clicked)))
    num_cells = NUM_ROWS * (NUM_STEPS - 1) if reference else len(losses)
    assert len(losses) == (5 if reference else 4)
    np.testing.assert_allclose(got, 0.5 * sum(losses) / num_cells, **ROUNDING)


def test_its_gradient_reaches_states_items_and_negatives_that_count() -> None:
    inputs = example()
    layer = AuxiliaryLoss((100, 50))
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        layer(inputs, training=True)
        loss = tf.add_n(layer.losses)
    of_x, *of_parts, _ = tape.gradient(loss, inputs)
    assert of_x is None
    touched = [np.abs(part.numpy()).sum(axis=-1) > 0 for part in of_parts]
    of_state = PRESENT > 0
    np.testing.assert_array_equal(touched[0][:, :-1], of_state[:, :-1])
    for of_item in touched[1:]:
        np.testing.assert_array_equal(of_item[:, 1:], of_state[:, :-1])
        assert not of_item[:, 0].any()
