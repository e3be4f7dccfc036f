from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.config.train import DECAYS
from rankline.training.trainers.keras_optimizers import (
    OPTIMIZERS,
    LazyAdam,
    LossScale,
    PlainSGD,
    RowwiseAdagrad,
    ScheduledRate,
    make_optimizer,
)
from rankline.training.trainers.lr_schedule import Schedule
from rankline.training.trainers.precision import GROWTH_STEPS, INITIAL_SCALE
from rankline.workflows.core.errors import ConfigError
from tests.oracles.tolerance import ROUNDING


def table(name: str = "user_embedding") -> Any:
    return tf.Variable(tf.reshape(tf.range(12.0), (6, 2)), name=name)


def sparse(rows: list[int], seed: int = 0) -> Any:
    values = np.random.default_rng(seed).normal(size=(len(rows), 2)).astype(np.float32)
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64), tf.constant([6, 2], tf.int64))


@pytest.mark.parametrize("make", [PlainSGD, LazyAdam, RowwiseAdagrad])
def test_rows_that_were_not_looked_up_do_not_change(make: Any) -> None:
    variable, optimizer = table(), make(0.1)
    optimizer.build([variable])
    optimizer.apply_gradients([(sparse([0, 1, 5]), variable)])
    before = variable.numpy()
    slots = [slot.numpy() for slot in optimizer.variables[2:]]
    optimizer.apply_gradients([(sparse([1, 3], seed=1), variable)])
    untouched = [0, 2, 4, 5]
    np.testing.assert_array_equal(variable.numpy()[untouched], before[untouched])
    assert (variable.numpy()[[1, 3]] != before[[1, 3]]).all()
    for slot, kept in zip(optimizer.variables[2:], slots, strict=True):
        np.testing.assert_array_equal(slot.numpy()[untouched], kept[untouched])


@pytest.mark.parametrize("make", [PlainSGD, LazyAdam, RowwiseAdagrad])
def test_no_step_reads_a_whole_table(make: Any) -> None:
    variable, optimizer = table(), make(0.1)
    optimizer.build([variable])
    trace = tf.function(lambda *rows: optimizer.apply_gradients([(tf.IndexedSlices(*rows, [6, 2]), variable)]))
    graph = trace.get_concrete_function(tf.TensorSpec((None, 2)), tf.TensorSpec((None,), tf.int64)).graph
    read = {op.outputs[0].shape.rank for op in graph.get_operations() if op.type == "ReadVariableOp"}
    assert read == {0}  # the rate and the number of the step


def test_plain_sgd_takes_the_steps_of_keras_and_keeps_no_momentum() -> None:
    ours, theirs = (table(), table("kernel")), (table(), table("kernel"))
    plain, momentum_free = PlainSGD(0.05), keras.optimizers.SGD(0.05, jit_compile=False)
    for seed in range(3):
        gradients = [sparse([3, 0, 3], seed), tf.convert_to_tensor(sparse([1, 2], seed))]
        plain.apply_gradients(zip(gradients, ours, strict=True))
        momentum_free.apply_gradients(zip(gradients, theirs, strict=True))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert [tuple(slot.shape) for slot in plain.variables] == [()]  # the number of the step


def test_lazy_adam_is_adam_when_every_row_is_touched() -> None:
    lazy_table, lazy_dense, adam_table, adam_dense = table(), table("kernel"), table(), table("kernel")
    lazy, adam = LazyAdam(0.05), keras.optimizers.Adam(0.05, jit_compile=False)
    lazy.build([lazy_table, lazy_dense])
    adam.build([adam_table, adam_dense])
    for seed in range(5):
        rows = sparse([3, 0, 1, 5, 4, 2, 2], seed)  # a duplicate, too
        lazy.apply_gradients([(rows, lazy_table), (tf.convert_to_tensor(rows), lazy_dense)])
        adam.apply_gradients([(rows, adam_table), (tf.convert_to_tensor(rows), adam_dense)])
    np.testing.assert_allclose(lazy_dense, adam_dense, **ROUNDING)
    np.testing.assert_allclose(lazy_table, lazy_dense, **ROUNDING)
    np.testing.assert_allclose(adam_dense, lazy_table, **ROUNDING)


def test_rowwise_adagrad_follows_its_formula_and_leaves_dense_weights_to_adam() -> None:
    kernel, rows, adam_kernel = table("kernel"), table(), table("kernel")
    optimizer = RowwiseAdagrad(0.1, initial_accumulator=0.5, table_lr_scale=2.0)
    adam = keras.optimizers.Adam(0.1, jit_compile=False)
    optimizer.build([kernel, rows])
    adam.build([adam_kernel])
    expected, total = rows.numpy(), np.full(6, 0.5)
    for seed in range(3):
        gradient = sparse([4, 1], seed)
        dense = tf.convert_to_tensor(gradient)
        optimizer.apply_gradients([(dense, kernel), (gradient, rows)])
        adam.apply_gradients([(dense, adam_kernel)])
        for row, value in zip([4, 1], gradient.values.numpy(), strict=True):
            total[row] += np.mean(value**2)
            expected[row] -= 0.2 * value / np.sqrt(total[row])
    np.testing.assert_allclose(rows, expected, **ROUNDING)
    np.testing.assert_allclose(kernel, adam_kernel, **ROUNDING)


def test_rowwise_adagrad_takes_dense_gradients_of_tables() -> None:
    by_rows, whole = table(), table()
    for variable, gradient in (
        (by_rows, sparse(list(range(6)))),
        (whole, tf.convert_to_tensor(sparse(list(range(6))))),
    ):
        optimizer = RowwiseAdagrad(0.1)
        optimizer.build([variable])
        optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(by_rows, whole)


def test_table_lr_scale_scales_sparse_steps_only() -> None:
    rows, kernel = table(), table("kernel")
    optimizer = LazyAdam(0.01, table_lr_scale=3.0)
    optimizer.build([rows, kernel])
    start = rows.numpy()
    optimizer.apply_gradients([(sparse([0]), rows), (tf.convert_to_tensor(sparse([0])), kernel)])
    np.testing.assert_allclose((rows - start)[0], 3 * (kernel - start)[0], rtol=1e-3)


@pytest.mark.parametrize("make", [LazyAdam, RowwiseAdagrad])
def test_config_round_trip(make: Any) -> None:
    optimizer = make(0.3, table_lr_scale=2.0)
    assert make.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_loss_with_a_schedule(name: str) -> None:
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 20, end_learning_rate=0.0)
    scale = 1.0 if name == "rowwise_adagrad" else None
    optimizer = make_optimizer(name, learning_rate=schedule, batch_size=3, table_lr_scale=scale)
    rows, kernel = table(), tf.Variable([[0.2], [0.2]], name="kernel")
    rows.assign(rows / 10.0)

    def loss() -> Any:
        return tf.reduce_mean(tf.square(tf.gather(rows, [1, 2, 2]) @ kernel - 1.0))

    before = float(loss())
    optimizer.build([rows, kernel])
    for _ in range(20):
        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply_gradients(zip(tape.gradient(value, [rows, kernel]), [rows, kernel], strict=True))
    assert float(loss()) < before


def test_weight_decay_leaves_tables_alone() -> None:
    rows, kernel = table(), table("kernel")
    optimizer = make_optimizer("lazy_adam", learning_rate=0.1, batch_size=1, weight_decay=0.5)
    optimizer.build([rows, kernel])
    start = rows.numpy()
    optimizer.apply_gradients([(sparse([]), rows), (tf.zeros((6, 2)), kernel)])
    np.testing.assert_array_equal(rows, start)
    np.testing.assert_allclose(kernel, start * 0.95, rtol=1e-5)


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'adm'. Available: adagrad, adam, lazy_adam"):
        make_optimizer("adm", learning_rate=0.1, batch_size=1)
    with pytest.raises(ConfigError, match="has one learning rate"):
        make_optimizer("sgd", learning_rate=0.1, batch_size=1, table_lr_scale=2.0)
    with pytest.raises(ConfigError, match="no amsgrad"):
        LazyAdam(amsgrad=True)


@given(st.sampled_from(DECAYS), st.integers(0, 50), st.integers(0, 80), st.integers(0, 120))
def test_a_scheduled_rate_is_the_schedule_in_tensorflow(decay: str, warmup: int, begin: int, step: int) -> None:
    schedule = Schedule(num_steps=100, decay=decay, warmup_steps=warmup, decay_start_step=begin)
    rate = ScheduledRate(0.3, schedule)(tf.constant(step, tf.int64))
    assert rate.dtype == tf.float32
    assert float(rate) == pytest.approx(0.3 * schedule.factor(step), rel=1e-6, abs=1e-9)


def test_without_warmup_the_rates_are_those_of_keras() -> None:
    schedules = {
        "linear": keras.optimizers.schedules.PolynomialDecay(0.1, 20, end_learning_rate=0.0),
        "quadratic": keras.optimizers.schedules.PolynomialDecay(0.1, 20, end_learning_rate=0.0, power=2.0),
        "cosine": keras.optimizers.schedules.CosineDecay(0.1, 20),
    }
    for decay, theirs in schedules.items():
        ours = ScheduledRate(0.1, Schedule(num_steps=20, decay=decay))
        for step in range(22):
            np.testing.assert_allclose(ours(step), theirs(step), rtol=1e-5, atol=1e-8)


def test_a_rate_survives_the_config_of_its_optimizer() -> None:
    rate = ScheduledRate(0.1, Schedule(num_steps=20, decay="cosine"))
    again = ScheduledRate.from_config(rate.get_config())
    assert float(again(7)) == float(rate(7)) < 0.1


def scaled_step(scale: LossScale, optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """One step of `optimizer` in a graph; what it was given."""
    given: list[Any] = []

    def apply(unscaled: list[Any]) -> None:
        given.extend(unscaled)
        optimizer.apply_gradients(zip(unscaled, variables, strict=True))

    tf.function(lambda: scale.apply(gradients, apply), autograph=False)()
    return given


def test_gradients_of_a_scaled_loss_are_divided_and_stay_sparse() -> None:
    rows, kernel, scale = table(), table("kernel"), LossScale()
    plain_rows, plain_kernel = table(), table("kernel")
    one, other = PlainSGD(0.1), PlainSGD(0.1)
    for optimizer, variables in ((one, [rows, kernel]), (other, [plain_rows, plain_kernel])):
        optimizer.build(variables)
    gradient, dense = sparse([1, 4, 1]), tf.ones((6, 2))
    large = tf.IndexedSlices(gradient.values * INITIAL_SCALE, gradient.indices, gradient.dense_shape)
    given = scaled_step(scale, one, [large, dense * INITIAL_SCALE], [rows, kernel])
    other.apply_gradients([(gradient, plain_rows), (dense, plain_kernel)])
    assert [type(value) is tf.IndexedSlices for value in given] == [True, False]
    np.testing.assert_array_equal(rows, plain_rows)
    np.testing.assert_array_equal(kernel, plain_kernel)
    assert (float(scale.scale), int(scale.good_steps)) == (INITIAL_SCALE, 1)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_one_overflow_leaves_the_step_out_and_halves_the_scale(bad: float, is_sparse: bool) -> None:
    rows, kernel, scale, optimizer = table(), table("kernel"), LossScale(), LazyAdam(0.1)
    optimizer.build([rows, kernel])
    before = [variable.numpy() for variable in (rows, kernel, *optimizer.variables)]
    gradients = [sparse([2]), tf.ones((6, 2))]
    if is_sparse:
        gradients[0] = tf.IndexedSlices(gradients[0].values * bad, gradients[0].indices, gradients[0].dense_shape)
    else:
        gradients[1] = tf.tensor_scatter_nd_update(gradients[1], [[3, 1]], [bad])
    scaled_step(scale, optimizer, gradients, [rows, kernel])
    for variable, kept in zip((rows, kernel, *optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(variable, kept)
    assert (float(scale.scale), int(scale.good_steps)) == (INITIAL_SCALE / 2, 0)


def test_the_scale_doubles_after_many_good_steps() -> None:
    kernel, scale, optimizer = table("kernel"), LossScale(), PlainSGD(0.1)
    optimizer.build([kernel])
    scale.good_steps.assign(GROWTH_STEPS - 2)
    seen = []
    for _ in range(3):
        scaled_step(scale, optimizer, [tf.ones((6, 2))], [kernel])
        seen.append((float(scale.scale), int(scale.good_steps)))
    assert seen == [(INITIAL_SCALE, GROWTH_STEPS - 1), (2 * INITIAL_SCALE, 0), (2 * INITIAL_SCALE, 1)]
