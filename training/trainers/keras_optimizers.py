"""Optimizers whose cost per step depends on the batch, not on the size of the embedding tables.

In every step, Adam in Keras 2 decays both moments of a whole table, although a batch uses only a few thousand of its
rows (https://github.com/keras-team/keras/issues/19992). The optimizers here update only rows that were looked up.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from rankline.training.config.train import ROWWISE_TABLE_LR_SCALE
from rankline.training.trainers.lr_schedule import GROWTH_STEPS, INITIAL_SCALE, LearningRateSchedule, check_optimizer
from rankline.workflows.core.errors import ConfigError


class ScheduledRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # tensorflow has no types
    def __init__(self, learning_rate: float, schedule: LearningRateSchedule) -> None:
        self._learning_rate, self._schedule = learning_rate, schedule

    def __call__(self, step: Any) -> Any:
        """Return the learning rate after `step` steps as a float32 scalar."""
        return tf.cast(self._learning_rate * self._schedule.factor(tf.cast(step, tf.float64), tf), tf.float32)

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self._learning_rate, "schedule": self._schedule}


class LossScale:
    """Dynamic loss scaling of dense gradients and `tf.IndexedSlices`; see `rankline.training.trainers.lr_schedule`.

    Unlike Keras' `LossScaleOptimizer`, it does not count skipped steps as steps of the optimizer.
    """

    def __init__(self) -> None:
        self.scale = tf.Variable(INITIAL_SCALE, trainable=False, name="scale")
        self.good_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="good_steps")

    def apply(self, gradients: list[Any], apply: Callable[[list[Any]], None]) -> None:
        unscaled = [divided(gradient, self.scale) for gradient in gradients]
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values(gradient))) for gradient in unscaled])

        def applied() -> Any:
            apply(unscaled)
            return is_finite

        tf.cond(is_finite, applied, lambda: is_finite)
        steps = self.good_steps + 1
        grows = steps >= GROWTH_STEPS
        self.scale.assign(self.scale * tf.where(is_finite, tf.where(grows, 2.0, 1.0), 0.5))
        self.good_steps.assign(tf.where(is_finite & ~grows, steps, 0))


def divided(gradient: Any, by: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / by, gradient.indices, gradient.dense_shape)
    return gradient / by


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


class PlainSGD(keras.optimizers.Optimizer):  # type: ignore[misc]  # tensorflow has no types
    """Momentum-free stochastic gradient descent that updates only the table rows used by a batch.

    The SGD of Keras 2 stores a momentum for every weight even if momentum is 0, and reads or writes whole tables three
    times per step because of it. In addition, the base class applies a weight decay of 0 unless it is None, which takes
    another two passes.
    """

    def __init__(self, learning_rate: Any = 0.01) -> None:
        super().__init__(name=type(self).__name__, weight_decay=None, jit_compile=False)
        self._learning_rate = self._build_learning_rate(learning_rate)

    def update_step(self, gradient: Any, variable: Any) -> None:
        lr = tf.cast(self.learning_rate, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_sub(tf.IndexedSlices(lr * gradient.values, gradient.indices))
        else:
            variable.assign_sub(lr * gradient)

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self._serialize_hyperparameter(self._learning_rate)}


class LazyAdam(keras.optimizers.Adam):  # type: ignore[misc]  # tensorflow has no types
    """Adam (Kingma & Ba 2014) that updates only the table rows used by a batch.

    For all other rows both moments stay the same: they do not decay, and the row does not move on old momentum. The
    bias correction still counts all steps, so a row that is first seen late in training takes a first step of
    `(1 - beta_1) / sqrt(1 - beta_2)` learning rates, about 3, where Adam would take 1. If a batch uses every row, the
    update is exactly Adam's. Dense gradients use TensorFlow's fused Adam.
    """

    def __init__(self, learning_rate: Any = 0.001, *, table_lr_scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(learning_rate, **{"jit_compile": False, "name": type(self).__name__, **kwargs})
        if self.amsgrad:
            raise ConfigError(f"{self.name} does not support amsgrad. Remove amsgrad, or use 'adam'.")
        self.table_lr_scale = table_lr_scale

    def update_step(self, gradient: Any, variable: Any) -> None:
        m, v = (slots[self._index_dict[self._var_key(variable)]] for slots in (self._momentums, self._velocities))
        lr = tf.cast(self.learning_rate, variable.dtype)
        step = tf.cast(self.iterations + 1, variable.dtype)
        beta_1_power, beta_2_power = tf.pow(self.beta_1, step), tf.pow(self.beta_2, step)
        if not isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=m.handle, v=v.handle, beta1_power=beta_1_power, beta2_power=beta_2_power,
                lr=lr, beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon, grad=gradient,
            )  # fmt: skip
            return
        rows, values = gradient.indices, gradient.values
        m_rows = self.beta_1 * tf.gather(m, rows) + (1 - self.beta_1) * values
        v_rows = self.beta_2 * tf.gather(v, rows) + (1 - self.beta_2) * tf.square(values)
        alpha = self.table_lr_scale * lr * tf.sqrt(1 - beta_2_power) / (1 - beta_1_power)
        m.scatter_update(tf.IndexedSlices(m_rows, rows))
        v.scatter_update(tf.IndexedSlices(v_rows, rows))
        variable.scatter_sub(tf.IndexedSlices(alpha * m_rows / (tf.sqrt(v_rows) + self.epsilon), rows))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "table_lr_scale": self.table_lr_scale}


class RowwiseAdagrad(LazyAdam):
    """Row-wise Adagrad for embedding tables, Adam for everything else.

    Each table row has one accumulator, the sum of the mean squares of its gradients, which scales its steps. Rare rows
    keep large steps and frequent ones slow down, with 1/dimension of Adagrad's memory (Gupta et al. 2014, "Training
    highly multiclass classifiers"; FBGEMM's "exact row-wise Adagrad"). Rows that a batch does not use stay the same. A
    variable is a table if its name ends in `_embedding`, as in `tf.feature_column.embedding_column`, or in
    `/embedding_weights`, as in Keras' own `DenseFeatures`.
    """

    def __init__(self, learning_rate: Any = 0.001, *, initial_accumulator: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.initial_accumulator = initial_accumulator

    def build(self, var_list: Any) -> None:
        if getattr(self, "_built", False):
            return
        tables = [variable for variable in var_list if _is_table(variable)]
        super().build([variable for variable in var_list if not _is_table(variable)])
        self._build_index_dict(var_list)
        self._momentums: list[Any] = _by_position(var_list, self._momentums)
        self._velocities: list[Any] = _by_position(var_list, self._velocities)
        self._accumulators = {
            self._var_key(table): self.add_variable_from_reference(
                table,
                "accumulator",
                shape=(table.shape[0], 1),
                initial_value=tf.fill((table.shape[0], 1), self.initial_accumulator),
            )
            for table in tables
        }

    def update_step(self, gradient: Any, variable: Any) -> None:
        accumulator = self._accumulators.get(self._var_key(variable))
        if accumulator is None:
            super().update_step(gradient, variable)
            return
        if not isinstance(gradient, tf.IndexedSlices):
            gradient = tf.IndexedSlices(gradient, tf.range(tf.shape(gradient)[0]))
        rows, values = gradient.indices, gradient.values
        total = tf.gather(accumulator, rows) + tf.reduce_mean(tf.square(values), axis=1, keepdims=True)
        lr = self.table_lr_scale * tf.cast(self.learning_rate, variable.dtype)
        accumulator.scatter_update(tf.IndexedSlices(total, rows))
        variable.scatter_sub(tf.IndexedSlices(lr * values * tf.math.rsqrt(total), rows))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial_accumulator": self.initial_accumulator}


def _is_table(variable: Any) -> bool:
    return bool(variable.name.split(":")[0].endswith(("_embedding", "/embedding_weights")))


def _by_position(var_list: Any, slots: list[Any]) -> list[Any]:
    """Align optimizer slots with `var_list`, using None for embedding tables, which have no slot."""
    remaining = iter(slots)
    return [None if _is_table(variable) else next(remaining) for variable in var_list]


# name → (learning rate, scale of the tables' rate or None for the optimizer's default, rows per batch) → optimizer
OPTIMIZERS: Mapping[str, Callable[[Any, float | None, int], Any]] = {
    "sgd": lambda rate, *_: PlainSGD(rate),
    "adagrad": lambda rate, *_: keras.optimizers.Adagrad(rate, jit_compile=False),
    "adam": lambda rate, *_: keras.optimizers.Adam(rate, jit_compile=False),
    "lazy_adam": lambda rate, scale, _: LazyAdam(rate, table_lr_scale=scale or 1.0),
    # The loss is a mean, so the gradient of a single row is of the order of 1 / batch_size.
    "rowwise_adagrad": lambda rate, scale, batch_size: RowwiseAdagrad(
        rate, table_lr_scale=scale or ROWWISE_TABLE_LR_SCALE, initial_accumulator=batch_size**-2.0
    ),
}


def make_optimizer(
    name: str, *, learning_rate: Any, batch_size: int, table_lr_scale: float | None = None, weight_decay: float = 0.0
) -> Any:
    check_optimizer(name, table_lr_scale, OPTIMIZERS)
    optimizer = OPTIMIZERS[name](learning_rate, table_lr_scale, batch_size)
    if weight_decay:
        optimizer.weight_decay = weight_decay
        optimizer.exclude_from_weight_decay(var_names=["_embedding"])
    return optimizer
