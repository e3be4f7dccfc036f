"""Fitting a Keras model: see `training.fit.Fit`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tensorflow as tf

from training import saved_model
from training.config import TrainConfig
from training.fit import Array, Batches, share_of_sample, swapped
from training.loader.splits import tensorflow_loader
from training.models import model_builder
from training.optimizers import make_optimizer
from workflows.feature_spec import FeatureSpec


class TensorFlowFit:
    """Fits a model that takes `training.models.base.keras_inputs` and gives one probability.

    Seeds Python's, NumPy's and TensorFlow's global generators.
    """

    PYFUNC = saved_model.__name__
    PACKAGES = ("tensorflow-cpu", "tensorflow")

    def __init__(self, spec: FeatureSpec, config: TrainConfig, num_steps: int) -> None:
        tf.keras.utils.set_random_seed(config.seed)
        self._spec = spec
        self.model = model_builder(config.model)(spec, config)
        self._optimizer = _make_optimizer(config, num_steps)
        self._optimizer.build(self.model.trainable_variables)
        self._average = _Average(self.model.trainable_variables) if config.weight_averaging else None
        self._loss_sum = tf.Variable(0.0, dtype=tf.float64)
        inputs = {name: tf.TensorSpec((None, 1), tensor.dtype, name) for name, tensor in self.model.input.items()}
        labels = tf.TensorSpec((None, 1), tf.float32)
        # Called as concrete functions: looking for the right trace costs a quarter of a millisecond each time.
        self._step = tf.function(self._train_batch, autograph=False).get_concrete_function(inputs, labels)
        self._score = tf.function(
            lambda batch: self.model(batch, training=False), autograph=False
        ).get_concrete_function(inputs)

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig) -> None:  # noqa: ARG004  (it reads every format)
        """See `Fit`."""
        _make_optimizer(config, num_steps=1)

    @staticmethod
    def batches(prepared: Path, spec: FeatureSpec, split: str, batch_size: int, *, shuffle: bool, seed: int) -> Batches:
        """See `Fit`."""
        return tensorflow_loader(prepared, spec, split, batch_size, shuffle=shuffle, seed=seed)

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        """See `Fit`."""
        self._step(inputs, labels)

    def loss_sum(self) -> float:
        """See `Fit`."""
        return float(self._loss_sum.numpy())

    def average(self) -> None:
        """See `Fit`."""
        if self._average is not None:
            self._average.update()

    def averaged(self) -> AbstractContextManager[None]:
        """See `Fit`."""
        return swapped(self._average)

    def score(self, inputs: Mapping[str, Any]) -> Array:
        """See `Fit`."""
        return self.array(self._score(inputs))

    def array(self, tensor: Any) -> Array:
        """See `Fit`."""
        column: Array = tensor.numpy()[:, 0]
        return column

    def weights(self) -> list[Array]:
        """See `Fit`."""
        source = self._average.values if self._average else self.model.trainable_variables
        return [variable.numpy() for variable in source]

    def set_weights(self, weights: Sequence[Array]) -> None:
        """See `Fit`."""
        for variable, value in zip(self.model.trainable_variables, weights, strict=True):
            variable.assign(value)

    def export(self, path: Path) -> None:
        """See `Fit`."""
        saved_model.export_saved_model(self.model, self._spec, path)

    def _train_batch(self, inputs: Mapping[str, Any], labels: Any) -> None:
        with tf.GradientTape() as tape:
            scores = self.model(inputs, training=True)
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, scores))
            objective = tf.add_n([loss, *self.model.losses])
        variables = self.model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(objective, variables), variables))  # noqa: B905  (Keras)
        self._loss_sum.assign_add(tf.cast(loss, tf.float64) * tf.cast(tf.shape(labels)[0], tf.float64))


class _Average:
    """Average of the weights over a run; a sample passes over all of them, tables included."""

    def __init__(self, variables: list[Any]) -> None:
        self._variables = variables
        self.values = [tf.Variable(variable, trainable=False) for variable in variables]
        self._count = tf.Variable(0.0, trainable=False)
        self.update = tf.function(self._update, autograph=False)
        self.swap = tf.function(self._swap, autograph=False)

    def _update(self) -> None:
        share = share_of_sample(self._count.assign_add(1.0))
        for value, variable in zip(self.values, self._variables, strict=True):
            value.assign_add(share * (variable - value))

    def _swap(self) -> None:
        for value, variable in zip(self.values, self._variables, strict=True):
            kept = tf.identity(variable)
            variable.assign(value)
            value.assign(kept)


def _make_optimizer(config: TrainConfig, num_steps: int) -> Any:
    return make_optimizer(
        config.optimizer,
        learning_rate=_schedule(config, num_steps),
        batch_size=config.batch_size,
        table_lr_scale=config.table_lr_scale,
        weight_decay=config.weight_decay,
    )


def _schedule(config: TrainConfig, num_steps: int) -> Any:
    if config.learning_rate_decay == "none":
        return config.learning_rate
    if config.learning_rate_decay == "cosine":
        return tf.keras.optimizers.schedules.CosineDecay(config.learning_rate, num_steps)
    return tf.keras.optimizers.schedules.PolynomialDecay(config.learning_rate, num_steps, end_learning_rate=0.0)
