"""The recurrent layers of DIEN against one row and one step at a time in NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from rankline.training.models.layers.recurrent import Augru, DienBlock, Gru
from rankline.workflows.core.errors import ConfigError
from tests.oracles.tolerance import ROUNDING

LENGTHS, NUM_STEPS, WIDTH, UNITS = (5, 0, 2, 1), 5, 3, 4
PRESENT = (np.arange(NUM_STEPS) >= NUM_STEPS - np.array(LENGTHS)[:, None]).astype(np.float32)
PROFILES = pytest.mark.parametrize("reference", [False, True])


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def example(num_candidates: int = 3) -> list[Any]:
    history = random(len(LENGTHS), NUM_STEPS, WIDTH) * PRESENT[..., None]
    return [tf.constant(x) for x in (random(len(LENGTHS), num_candidates, WIDTH), history, PRESENT)]


def with_random_weights(layer: Any, inputs: list[Any]) -> Any:
    layer(inputs)
    layer.set_weights([random(*weight.shape, seed=n) for n, weight in enumerate(layer.weights)])
    return layer


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def gates(weights: list[Any], x: Any, state: Any) -> tuple[Any, ...]:
    """Reset, update, and the two addends of the candidate state but for the reset gate."""
    kernel, recurrent, bias = weights
    reset, update, ours = np.split(x @ kernel + bias, 3)
    of_reset, of_update, of_candidate = np.split(recurrent, 3, axis=1)
    return sigmoid(reset + state @ of_reset), sigmoid(update + state @ of_update), ours, of_candidate


def gru(weights: list[Any], items: Any, is_item: Any, reference: bool) -> Any:
    state, states = np.zeros(UNITS), []
    for x, there in zip(items, is_item, strict=True):
        reset, update, ours, of_candidate = gates(weights, x, state)
        new = np.tanh(ours + reset * (state @ of_candidate))
        if there or reference:
            state = (1 - update) * state + update * new
        states.append(state)
    return np.array(states)


def augru(weights: list[Any], items: Any, attention: Any, reference: bool) -> Any:
    state = np.zeros(UNITS)
    for x, a in zip(items, attention, strict=True):
        reset, update, ours, of_candidate = gates(weights, x, state)
        if reference:
            update = (1 - a) * update
            state = update * state + (1 - update) * np.tanh(ours + (reset * state) @ of_candidate)
        else:
            update = a * update
            state = (1 - update) * state + update * np.tanh(ours + reset * (state @ of_candidate))
    return state


def block(weights: list[Any], target: Any, items: Any, is_item: Any, reference: bool) -> tuple[Any, Any]:
    """One candidate of one row."""
    of_gru, of_augru, (kernel, bias, shares), unit = weights[:3], weights[3:6], weights[6:9], weights[9:]
    states = gru(of_gru, items, is_item, reference)
    query = target @ kernel + bias
    query = np.where(query > 0, query, shares * query)
    attention = np.zeros(NUM_STEPS)
    if is_item.any():
        x = np.array([np.concatenate([query, s, query - s, query * s]) for s in states])
        for kernel, bias in (unit[0:2], unit[2:4]):
            x = sigmoid(x @ kernel + bias)
        scores = np.where(is_item > 0, (x @ unit[4] + unit[5])[:, 0], -np.inf)
        attention = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return augru(of_augru, states, attention, reference), states


@PROFILES
def test_gru_is_its_formula(reference: bool) -> None:
    _, history, present = example()
    layer = with_random_weights(Gru(UNITS, reference), [history, present])
    rows = zip(history.numpy(), PRESENT, strict=True)
    wanted = [gru(layer.get_weights(), items, is_item, reference) for items, is_item in rows]
    np.testing.assert_allclose(layer([history, present]), wanted, **ROUNDING)
    assert np.any(wanted[1]) == reference  # a row without items


@PROFILES
@pytest.mark.parametrize("num_candidates", [1, 3])
def test_augru_is_its_formula(reference: bool, num_candidates: int) -> None:
    _, history, _ = example()
    attention = tf.nn.softmax(random(len(LENGTHS), num_candidates, NUM_STEPS))
    layer = with_random_weights(Augru(UNITS, reference), [history, attention])
    got = layer([history, attention]).numpy()
    for row, candidate in np.ndindex(got.shape[:2]):
        wanted = augru(layer.get_weights(), history[row].numpy(), attention[row, candidate].numpy(), reference)
        np.testing.assert_allclose(got[row, candidate], wanted, **ROUNDING)


def test_step_without_weight_leaves_the_papers_state_and_changes_the_references() -> None:
    history = tf.constant(random(1, NUM_STEPS, WIDTH))
    attention = tf.constant([[[0.5, 0.3, 0.0, 0.0, 0.0]]])
    for reference in (False, True):
        layer = with_random_weights(Augru(UNITS, reference), [history, attention])
        short = layer([history[:, :2], attention[..., :2]])
        assert np.allclose(layer([history, attention]), short, **ROUNDING) != reference


@PROFILES
@pytest.mark.parametrize("num_candidates", [1, 3])
def test_block_is_its_formula(reference: bool, num_candidates: int) -> None:
    inputs = example(num_candidates)
    layer = with_random_weights(DienBlock(UNITS, reference), inputs)
    targets, history, present = (x.numpy() for x in inputs)
    got, states = (x.numpy() for x in layer(inputs))
    assert states.shape == (len(LENGTHS), NUM_STEPS, UNITS)
    for row, candidate in np.ndindex(got.shape[:2]):
        wanted = block(layer.get_weights(), targets[row, candidate], history[row], present[row], reference)
        np.testing.assert_allclose(got[row, candidate], wanted[0], **ROUNDING)
        np.testing.assert_allclose(states[row], wanted[1], **ROUNDING)


@PROFILES
def test_candidates_at_once_are_candidates_one_by_one_and_rows_are_rows_alone(reference: bool) -> None:
    targets, history, present = example()
    layer = with_random_weights(DienBlock(UNITS, reference), [targets, history, present])
    together, _ = layer([targets, history, present])
    call = tf.function(layer, autograph=False)
    for row, candidate in np.ndindex(*together.shape[:2]):
        rows = slice(row, row + 1)
        one, _ = call([targets[rows, candidate : candidate + 1], history[rows], present[rows]])
        np.testing.assert_allclose(one[0, 0], together[row, candidate], **ROUNDING)


def test_dien_ignores_padding_and_gives_zeros_without_items() -> None:
    targets, history, present = example()
    layer = with_random_weights(DienBlock(UNITS), [targets, history, present])
    state, states = layer([targets, history, present])
    before = [[0, 0], [3, 0]]
    padded = DienBlock(UNITS)
    wider = [targets, tf.pad(history, [*before, [0, 0]]), tf.pad(present, before)]
    padded(wider)
    padded.set_weights(layer.get_weights())
    np.testing.assert_allclose(padded(wider)[0], state, **ROUNDING)
    assert not state[1].numpy().any()
    assert not states[1].numpy().any()
    noisy, _ = layer([targets, history + 9 * (1 - present[..., None]), present])
    np.testing.assert_allclose(noisy, state, **ROUNDING)


@PROFILES
def test_gradients_are_the_slopes(reference: bool) -> None:
    """Against central differences in a random direction of each weight and input."""
    inputs = example(2)
    layer = with_random_weights(DienBlock(UNITS, reference), inputs)
    targets, history = (tf.Variable(x) for x in inputs[:2])
    variables = [targets, history, *layer.trainable_variables]

    @tf.function(autograph=False)
    def loss() -> Any:
        state, states = layer([targets, history, inputs[2]])
        return tf.reduce_sum(state * random(*state.shape)) + tf.reduce_sum(states * random(*states.shape))

    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
        direction, value, sides = random(*variable.shape, seed=7), variable.numpy(), []
        direction /= np.linalg.norm(direction)
        for step in (1e-2, -1e-2):
            variable.assign(value + step * direction)
            sides.append(loss().numpy())
        variable.assign(value)
        slope = (sides[0] - sides[1]) / 2e-2
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=0.03, atol=3e-3, err_msg=variable.name)


@pytest.mark.slow
def test_dien_gradients_of_many_rows_add_up_in_half_precision(half: str) -> None:
    inputs = [tf.constant(x) for x in (random(2000, 1, 3) + 1, random(2000, 2, 3) + 1, np.ones((2000, 2), np.float32))]
    of_precision = []
    for policy in (f"mixed_{half}", "float32"):
        keras.mixed_precision.set_global_policy(policy)
        layer = DienBlock(UNITS)
        layer(inputs)
        layer.set_weights([random(*weight.shape, seed=n) * 0.3 for n, weight in enumerate(layer.weights)])

        @tf.function(jit_compile=half == "float16", autograph=False)
        def gradients(layer: Any = layer) -> Any:
            with tf.GradientTape() as tape:
                loss = 2.0**10 * tf.reduce_mean(tf.cast(layer(inputs)[0], tf.float32))  # as a loss scale
            return tape.gradient(loss, layer.trainable_variables[:-1])  # the last one's is zero but for rounding

        of_precision.append(gradients())
    for one, other in zip(*of_precision, strict=True):
        assert one.dtype == tf.float32
        assert np.linalg.norm(one - other) < 0.08 * np.linalg.norm(other)


def test_history_of_unknown_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown length"):
        Gru(UNITS)([keras.Input((None, WIDTH)), keras.Input((None,))])
