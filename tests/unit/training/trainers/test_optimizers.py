"""What an optimizer does to tables and dense weights whatever the framework, and what is of one framework alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankline.training.config.train import DECAYS, TrainConfig
from rankline.training.models.tabular import TorchMLPConfig
from rankline.training.trainers import torch_optimizers
from rankline.training.trainers.keras_optimizers import (
    OPTIMIZERS,
    LazyAdam,
    LossScale,
    PlainSGD,
    RowwiseAdagrad,
    ScheduledRate,
    make_optimizer,
)
from rankline.training.trainers.lr_schedule import GROWTH_STEPS, INITIAL_SCALE, LearningRateSchedule, check_optimizer
from rankline.workflows.core.errors import ConfigError
from tests.oracles.tolerance import ROUNDING

BATCH_SIZE, NUM_STEPS = 4, 10
START = np.arange(12, dtype=np.float32).reshape(6, 2)
CONFIG = TrainConfig(
    model=TorchMLPConfig(linear_terms=False), weight_averaging=False, batch_size=BATCH_SIZE, table_lr_scale=None
)


class KerasFit:
    """A table and a dense weight, both `START`, with the optimizer that a Keras model gets."""

    def __init__(self, name: str, *, learning_rate: float = 0.1, **options: Any) -> None:
        self._table, self._dense = tf.Variable(START, name="user_embedding"), tf.Variable(START, name="kernel")
        self.optimizer = make_optimizer(name, learning_rate=learning_rate, batch_size=BATCH_SIZE, **options)
        self.optimizer.build([self._table, self._dense])

    @property
    def table(self) -> Any:
        return self._table.numpy()

    @property
    def dense(self) -> Any:
        return self._dense.numpy()

    def step(self, rows: list[int], values: Any, dense: Any) -> None:
        sparse = tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64), tf.constant([6, 2], tf.int64))
        self.optimizer.apply_gradients([(sparse, self._table), (tf.constant(dense), self._dense)])


class Tables(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.tensor(START), freeze=False)
        self.bag = torch.nn.EmbeddingBag.from_pretrained(torch.tensor(START), freeze=False, mode="sum")
        self.dense = torch.nn.Parameter(torch.tensor(START))


class TorchFit:
    """The same with what a PyTorch model gets."""

    def __init__(self, name: str, **options: Any) -> None:
        self.model = Tables()
        config = CONFIG.with_choices(optimizer=name, **{"learning_rate": 0.1, **options})
        self.optimizers = torch_optimizers.Optimizers(self.model, config, NUM_STEPS)

    @property
    def table(self) -> Any:
        np.testing.assert_array_equal(self.model.bag.weight.detach(), self.model.table.weight.detach())
        return self.model.table.weight.detach().numpy().copy()

    @property
    def dense(self) -> Any:
        return self.model.dense.detach().numpy().copy()

    def step(self, rows: list[int], values: Any, dense: Any) -> None:
        """A loss that has these gradients."""
        ids, of_rows = torch.tensor(rows), torch.tensor(values)
        looked_up = (self.model.table(ids) + self.model.bag(ids[:, None])) * of_rows
        self.optimizers.step(looked_up.sum() + (self.model.dense * torch.tensor(dense)).sum())


Fit = KerasFit | TorchFit


@pytest.fixture(params=[KerasFit, TorchFit], ids=["keras", "torch"])
def fit(request: pytest.FixtureRequest) -> Callable[..., Fit]:
    return request.param  # type: ignore[no-any-return]


def normal(num_rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(num_rows, 2)).astype(np.float32)


def steps(fit: Fit, batches: list[list[int]]) -> Fit:
    """The fit after a step by rows of a table and the same gradient as a whole."""
    for seed, rows in enumerate(batches):
        values, dense = normal(len(rows), seed), np.zeros((6, 2), np.float32)
        np.add.at(dense, rows, values)
        fit.step(rows, values, dense)
    return fit


@pytest.mark.parametrize("name", ["sgd", "lazy_adam", "rowwise_adagrad", "adagrad", "adam"])
def test_rows_that_were_not_looked_up_are_moved_on_by_adam_only(fit: Any, name: str) -> None:
    before = steps(fit(name), [[0, 1, 5]]).table
    moved = (steps(fit(name), [[0, 1, 5], [1, 3]]).table != before).any(axis=1)
    earlier = name == "adam"
    assert moved.tolist() == [earlier, True, False, True, False, earlier]


@pytest.mark.parametrize("name", ["sgd", "adam", "lazy_adam"])
def test_optimizer_takes_the_steps_of_its_library(fit: Any, name: str) -> None:
    """Lazy Adam, too, where every row is touched. A row comes twice."""
    batches, weight = [[3, 0, 1, 5, 4, 2, 2]] * 5, tf.Variable(START)
    kind = keras.optimizers.SGD if name == "sgd" else keras.optimizers.Adam
    theirs = kind(0.1, jit_compile=False)
    for seed, rows in enumerate(batches):
        dense = np.zeros((6, 2), np.float32)
        np.add.at(dense, rows, normal(len(rows), seed))
        theirs.apply_gradients([(tf.constant(dense), weight)])
    ours = steps(fit(name), batches)
    np.testing.assert_allclose(ours.table, weight, **ROUNDING)
    np.testing.assert_allclose(ours.dense, weight, **ROUNDING)


def test_rowwise_adagrad_follows_its_formula_and_leaves_dense_weights_to_adam(fit: Any) -> None:
    ours, adam = fit("rowwise_adagrad", table_lr_scale=2.0), fit("adam")
    table, total = START.copy(), np.full(6, 1 / BATCH_SIZE**2)
    for seed in range(3):
        values = normal(2, seed)
        ours.step([4, 1], values, np.ones((6, 2), np.float32))
        adam.step([4, 1], values, np.ones((6, 2), np.float32))
        for row, value in zip([4, 1], values, strict=True):
            total[row] += np.mean(value**2)
            table[row] -= 2.0 * 0.1 * value / np.sqrt(total[row])
    np.testing.assert_allclose(ours.table, table, **ROUNDING)
    np.testing.assert_allclose(ours.dense, adam.dense, **ROUNDING)


@pytest.mark.parametrize("name", ["lazy_adam", "rowwise_adagrad"])
def test_table_lr_scale_scales_steps_of_tables_only(fit: Any, name: str) -> None:
    small, large = (steps(fit(name, table_lr_scale=scale), [[0]]) for scale in (1.0, 3.0))
    np.testing.assert_allclose(START - large.table, 3 * (START - small.table), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(large.dense, small.dense)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_is_decoupled_and_spares_tables(fit: Any, name: str) -> None:
    plain, decayed = (steps(fit(name, weight_decay=decay), [[1, 1]]) for decay in (0.0, 0.5))
    np.testing.assert_array_equal(decayed.table, plain.table)
    np.testing.assert_allclose(plain.dense - decayed.dense, 0.1 * 0.5 * START, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("magic", {}, "'magic'. Available.*: adagrad, adam, lazy_adam"),
        ("sgd", {"table_lr_scale": 2.0}, "'sgd' does not support table"),
        ("adam", {"table_lr_scale": 2.0}, "'adam' does not support table"),
    ],
)
@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_optimizer_refuses_unknown_names_and_options(
    framework: str, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        if framework == "keras":
            make_optimizer(name, learning_rate=0.1, batch_size=1, **options)
        else:
            check_optimizer(name, options.get("table_lr_scale"), torch_optimizers.OPTIMIZERS)


# --- Learning rates


@given(st.sampled_from(DECAYS), st.integers(0, 50), st.integers(0, 80), st.integers(0, 120))
def test_keras_rate_is_that_of_the_schedule(decay: str, warmup: int, begin: int, step: int) -> None:
    schedule = LearningRateSchedule(num_steps=100, decay=decay, warmup_steps=warmup, decay_start_step=begin)
    rate = ScheduledRate(0.3, schedule)
    assert rate(tf.constant(step, tf.int64)).dtype == tf.float32
    for found in (rate, ScheduledRate.from_config(rate.get_config())):
        assert float(found(step)) == pytest.approx(0.3 * schedule.factor(step), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_torch_rate_is_that_of_the_schedule(decay: str, warmup_steps: int) -> None:
    schedule = LearningRateSchedule(num_steps=NUM_STEPS, decay=decay, warmup_steps=warmup_steps, decay_start_step=3)
    fit = TorchFit("sgd", learning_rate_decay=decay, warmup_steps=warmup_steps, decay_start_step=3)
    for step in range(NUM_STEPS):
        before = fit.dense
        fit.step([1], normal(1), np.ones((6, 2), np.float32))
        np.testing.assert_allclose(before - fit.dense, 0.1 * float(schedule.factor(step)), atol=1e-5)


# --- Loss scales


def test_keras_loss_scale_divides_gradients_and_keeps_them_sparse() -> None:
    values, dense = normal(3), np.ones((6, 2), np.float32)
    fit, expected, scale = KerasFit("sgd"), KerasFit("sgd"), LossScale()
    expected.step([1, 4, 1], values, dense)
    sparse = tf.IndexedSlices(values * INITIAL_SCALE, tf.constant([1, 4, 1], tf.int64), tf.constant([6, 2], tf.int64))
    given: list[Any] = []

    def apply(unscaled: list[Any]) -> None:
        given.extend(unscaled)
        fit.optimizer.apply_gradients(zip(unscaled, (fit._table, fit._dense), strict=True))

    tf.function(lambda: scale.apply([sparse, tf.constant(dense * INITIAL_SCALE)], apply), autograph=False)()
    assert [type(value) is tf.IndexedSlices for value in given] == [True, False]
    np.testing.assert_array_equal(fit.table, expected.table)
    np.testing.assert_array_equal(fit.dense, expected.dense)
    assert (float(scale.scale), int(scale.good_steps)) == (INITIAL_SCALE, 1)


def test_torch_loss_scale_divides_gradients_and_keeps_them_sparse() -> None:
    plain, scaled, scale = Tables(), Tables(), torch_optimizers.LossScale()
    for model, factor in ((plain, 1.0), (scaled, scale.scale)):
        model.table.sparse = True
        (factor * model.table(torch.tensor([1, 2, 2])).square().mean()).backward()
    assert scale.unscale([scaled.table.weight])
    assert scaled.table.weight.grad.is_sparse
    torch.testing.assert_close(scaled.table.weight.grad.to_dense(), plain.table.weight.grad.to_dense())
    assert (scale.scale, scale.good_steps) == (INITIAL_SCALE, 1)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_keras_loss_scale_leaves_a_step_out_and_halves_after_one_overflow(bad: float, is_sparse: bool) -> None:
    fit, scale = KerasFit("lazy_adam"), LossScale()
    before = [variable.numpy() for variable in fit.optimizer.variables]
    values, dense = normal(1), np.ones((6, 2), np.float32)
    (values if is_sparse else dense)[0, 1] = bad
    sparse = tf.IndexedSlices(tf.constant(values), tf.constant([2], tf.int64), tf.constant([6, 2], tf.int64))
    variables = (fit._table, fit._dense)

    def apply(unscaled: list[Any]) -> None:
        fit.optimizer.apply_gradients(zip(unscaled, variables, strict=True))

    tf.function(lambda: scale.apply([sparse, tf.constant(dense)], apply), autograph=False)()
    for variable, kept in zip((*variables, *fit.optimizer.variables), (START, START, *before), strict=True):
        np.testing.assert_array_equal(variable, kept)
    assert (float(scale.scale), int(scale.good_steps)) == (INITIAL_SCALE / 2, 0)


def keras_scales() -> list[tuple[float, int]]:
    scale, found = LossScale(), []
    scale.good_steps.assign(GROWTH_STEPS - 2)
    for _ in range(3):
        tf.function(lambda: scale.apply([tf.ones(2)], lambda unscaled: None), autograph=False)()
        found.append((float(scale.scale), int(scale.good_steps)))
    return found


def torch_scales() -> list[tuple[float, int]]:
    weight, scale, found = torch.nn.Parameter(torch.ones(2)), torch_optimizers.LossScale(), []
    scale.good_steps = GROWTH_STEPS - 2
    for _ in range(3):
        weight.grad = torch.ones(2)
        scale.unscale([weight])
        found.append((scale.scale, scale.good_steps))
    return found


@pytest.mark.parametrize("scales", [keras_scales, torch_scales])
def test_loss_scale_doubles_after_many_good_steps(scales: Callable[[], list[tuple[float, int]]]) -> None:
    assert scales() == [(INITIAL_SCALE, GROWTH_STEPS - 1), (2 * INITIAL_SCALE, 0), (2 * INITIAL_SCALE, 1)]


# --- What is of one framework alone


@pytest.mark.parametrize("make", [PlainSGD, LazyAdam, RowwiseAdagrad])
def test_keras_step_reads_no_whole_table(make: Any) -> None:
    variable, optimizer = tf.Variable(START, name="user_embedding"), make(0.1)
    optimizer.build([variable])
    trace = tf.function(lambda *rows: optimizer.apply_gradients([(tf.IndexedSlices(*rows, [6, 2]), variable)]))
    graph = trace.get_concrete_function(tf.TensorSpec((None, 2)), tf.TensorSpec((None,), tf.int64)).graph
    read = {op.outputs[0].shape.rank for op in graph.get_operations() if op.type == "ReadVariableOp"}
    assert read == {0}  # the rate and the number of the step


def test_keras_rowwise_adagrad_takes_dense_gradients_of_tables() -> None:
    by_rows, whole = (tf.Variable(START, name="user_embedding") for _ in range(2))
    values = tf.constant(normal(6))
    for variable, gradient in ((by_rows, tf.IndexedSlices(values, tf.range(6), [6, 2])), (whole, values)):
        optimizer = RowwiseAdagrad(0.1)
        optimizer.build([variable])
        optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_allclose(by_rows, whole)


@pytest.mark.parametrize("make", [LazyAdam, RowwiseAdagrad])
def test_keras_optimizer_comes_back_from_its_config(make: Any) -> None:
    optimizer = make(0.3, table_lr_scale=2.0)
    assert make.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torch_state_has_its_names_from_the_start(name: str) -> None:
    fit = TorchFit(name)
    start = {entry: np.asarray(value).copy() for entry, value in fit.optimizers.state().items()}
    np.testing.assert_array_equal(fit.dense, START)
    assert all(not value.any() for entry, value in start.items() if entry.endswith(("step", "exp_avg", "steps")))
    steps(fit, [[1, 2]])
    assert fit.optimizers.state().keys() == start.keys()
    assert fit.optimizers.state()["steps"] == 1


STEPS = st.integers(0, 5_000)
SCHEDULES = st.builds(
    LearningRateSchedule,
    num_steps=st.integers(1, 5_000),
    decay=st.sampled_from(DECAYS),
    warmup_steps=STEPS,
    decay_start_step=STEPS,
)


def start(schedule: LearningRateSchedule) -> int:
    return max(schedule.warmup_steps, schedule.decay_start_step)


@given(SCHEDULES, st.floats(0, 10_000))
def test_factor_stays_between_zero_and_one(schedule: LearningRateSchedule, step: float) -> None:
    assert 0 <= schedule.factor(step) <= 1


@given(SCHEDULES, st.floats(0, 5_000), st.floats(0, 1))
def test_schedule_never_jumps(schedule: LearningRateSchedule, step: float, further: float) -> None:
    steepest = 1 / max(schedule.warmup_steps, 1) + 2 / max(schedule.num_steps - start(schedule), 1)
    assert abs(schedule.factor(step + further) - schedule.factor(step)) <= steepest * further + 1e-12


@given(SCHEDULES, STEPS)
def test_schedule_rises_through_the_warmup_and_never_after(schedule: LearningRateSchedule, step: int) -> None:
    rises = schedule.factor(step + 1) > schedule.factor(step)
    assert rises == (step < schedule.warmup_steps)
    assert schedule.factor(0) == (0 if schedule.warmup_steps else 1)


@given(SCHEDULES)
def test_schedule_reaches_one_and_then_zero_at_the_end(schedule: LearningRateSchedule) -> None:
    assert schedule.factor(start(schedule)) == 1
    if start(schedule) < schedule.num_steps:
        assert schedule.factor(schedule.num_steps) == pytest.approx(1 if schedule.decay == "none" else 0)
        assert schedule.factor(schedule.num_steps - 1) > 0


@given(st.integers(1, 100), st.integers(0, 100), st.integers(101, 300), st.integers(0, 300))
def test_quadratic_is_the_published_polynomial_decay(warmup: int, plateau: int, num_steps: int, step: int) -> None:
    decay_start = min(warmup + plateau, num_steps - 1)
    schedule = LearningRateSchedule(
        num_steps=num_steps, decay="quadratic", warmup_steps=warmup, decay_start_step=decay_start
    )
    if step < warmup:
        expected = step / warmup
    elif step < decay_start:
        expected = 1.0
    else:
        expected = (max(num_steps - step, 0) / (num_steps - decay_start)) ** 2
    assert schedule.factor(step) == pytest.approx(expected)


def test_schedule_is_made_from_the_choices_of_a_run() -> None:
    config = TrainConfig(learning_rate_decay="quadratic", warmup_steps=3, decay_start_step=7)
    assert LearningRateSchedule.of(config, 20) == LearningRateSchedule(
        num_steps=20, decay="quadratic", warmup_steps=3, decay_start_step=7
    )
    assert LearningRateSchedule.of(TrainConfig(), 20).is_constant
    assert not LearningRateSchedule.of(TrainConfig(warmup_steps=1), 20).is_constant
    assert not LearningRateSchedule.of(config, 20).is_constant
