"""Trainer of Keras models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import config as tensorflow_config

from rankline.training.config.train import TrainConfig
from rankline.training.data.loader.stream import StreamOptions
from rankline.training.data.open_split import tensorflow_loader
from rankline.training.distributed.communicator import SOLO, Communicator
from rankline.training.export import saved_model
from rankline.training.export.saved_model import split_at_features
from rankline.training.trainers.base import Array, Batches, Trainer, check_state, share_of_sample
from rankline.training.trainers.keras_optimizers import OPTIMIZERS, LossScale, ScheduledRate, divided, make_optimizer
from rankline.training.trainers.lr_schedule import LearningRateSchedule, check_optimizer
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.feature_spec import NEGATIVES, FeatureSpec
from rankline.workflows.schema.targets import BINARY, MULTICLASS, Head
from rankline.workflows.schema.tensor_names import NNZS, VALUES

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TensorFlowTrainer(Trainer):
    """Trains a Keras model that takes `keras_inputs` and has one output per head, or several outputs for a single head.

    With several, the first output is the score; `rankline.training.trainers.keras` has the loss. If the spec has
    negative histories, training steps use them and scoring does not.

    Seeds the global random generators of Python, NumPy and TensorFlow; dropout uses generators of the model. With a
    mixed `precision`, training uses a second network that computes in that precision on the float32 weights of `model`;
    scoring and export always use float32. On a CPU, float16 is always compiled with XLA.
    """

    PYFUNC = saved_model.__name__
    PACKAGES = ("tensorflow-cpu", "tensorflow")

    def __init__(
        self,
        spec: FeatureSpec,
        config: TrainConfig,
        num_steps: int,
        *,
        world: Communicator = SOLO,
        laid_out_for: int | None = None,
    ) -> None:
        keras.utils.set_random_seed(config.seed)
        self._spec, self._world, self._batch_size = spec, world, config.batch_size
        learns_with_xla = config.xla or _needs_xla(config.precision)
        step = replace(config, xla=learns_with_xla, batch_size=laid_out_for or config.batch_size)
        variables = list[Any]()
        model = partial(config.model.build, spec, step)
        self.model = _built(model, "float32", keep=variables)
        _check_network(self.model, config.model.network, spec.heads)
        self._scorer = self._learner = _Network(self.model, spec.heads, xla=config.xla)
        if config.precision != "float32":
            twin = _built(model, f"mixed_{config.precision}", take=variables)
            self._learner = _Network(twin, spec.heads, xla=learns_with_xla)
        weights = {id(weight) for weight in self.model.weights}
        # Besides weights, only the states of random generators are saved; other variables belong to Keras' `fit`.
        self._random = [variable for variable in variables if _short_name(variable) == "StateVar"]
        self._variables = [v for v in variables if id(v) in weights or _short_name(v) == "StateVar"]
        self._optimizer = _make_optimizer(config, num_steps)
        self._optimizer.build(self._scorer.weights)
        self._loss_scale = LossScale() if config.precision == "float16" else None
        self._average = _Average(self.model.trainable_variables) if config.weight_averaging else None
        self._loss_sum = tf.Variable(0.0, dtype=tf.float64, name="sum")
        self._added_sum = tf.Variable(0.0, dtype=tf.float64, name="added")
        self._finite_steps = tf.Variable(0, dtype=tf.int64, name="finite_steps")
        self._inputs = {name: tf.TensorSpec((None, 1), tensor.dtype, name) for name, tensor in self.model.input.items()}
        negatives = {feature.name + suffix for feature in spec.channel(NEGATIVES) for suffix in (VALUES, NNZS)}
        self._scored = sorted(self._inputs.keys() - negatives)

    @staticmethod
    def check(spec: FeatureSpec, config: TrainConfig, *, num_workers: int = 1) -> None:  # noqa: ARG004
        check_optimizer(config.optimizer, config.table_lr_scale, OPTIMIZERS)

    @staticmethod
    def sees_gpu() -> bool:
        return bool(tf.config.list_physical_devices("GPU"))

    @staticmethod
    @contextmanager
    def deterministic() -> Iterator[None]:
        if tensorflow_config.is_op_determinism_enabled():
            yield
            return
        tf.config.experimental.enable_op_determinism()
        try:
            yield
        finally:
            tensorflow_config.disable_op_determinism()  # the public API can only enable it

    @staticmethod
    def batches(
        prepared: Path, spec: FeatureSpec, split: str, batch_size: int, **options: "Unpack[StreamOptions]"
    ) -> Batches:
        return tensorflow_loader(prepared, spec, split, batch_size, **options)

    def share_state(self) -> None:
        self._world.broadcast(list(self._state_variables().values()))
        for state in self._random:
            # Counters and a key (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"); each key has its
            # own stream.
            state.assign(tf.concat([state[:-1], state[-1:] + self._world.rank], axis=0))

    def step(self, inputs: Mapping[str, Any], labels: Any) -> None:
        with self._world.translate_errors():
            self._step(inputs, labels)

    def diverged_at(self) -> int | None:
        return None if tf.math.is_finite(self._loss_sum) else int(self._finite_steps.numpy()) + 1

    def num_parameters(self) -> tuple[int, int]:
        tables, others = (
            sum(prod(variable.shape) for variable in variables)
            for variables in (self._scorer.tables, self._scorer.dense)
        )
        return tables, others

    def score(self, inputs: Mapping[str, Any]) -> Array:
        return self.array(self._score({name: inputs[name] for name in self._scored}))

    def quick_score(self, inputs: Mapping[str, Any]) -> Any:
        """Score at the training precision, unlike `score`, which always computes in float32."""
        return self._quick_score({name: inputs[name] for name in self._scored})

    def array(self, tensor: Any) -> Array:
        array: Array = tensor.numpy()
        return array[:, 0] if array.shape[1] == 1 else array

    def weights(self) -> list[Array]:
        variables = self._average.values if self._average else self.model.trainable_variables
        return [np.asarray(variable.numpy()) for variable in variables]

    def set_weights(self, weights: Sequence[Array]) -> None:
        for variable, value in zip(self.model.trainable_variables, weights, strict=True):
            variable.assign(value)

    def state(self) -> dict[str, Array]:
        return {name: np.asarray(variable.numpy()) for name, variable in self._state_variables().items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        variables = self._state_variables()
        if state or self._world.rank == 0:
            check_state(state, {name: tuple(variable.shape) for name, variable in variables.items()})
        for name, value in state.items():
            variables[name].assign(value)

    def export(self, path: Path) -> None:
        saved_model.export_saved_model(self.model, self._spec, path)

    # Traced at the first call, because scoring alone needs no training step. Concrete functions avoid TensorFlow's
    # lookup of the right trace, which takes a quarter of a millisecond per call.

    @cached_property
    def _step(self) -> Callable[..., Any]:
        return _traced(self._train_batch, self._inputs, tf.TensorSpec((None, len(self._spec.heads)), tf.float32))

    @cached_property
    def _score(self) -> Callable[..., Any]:
        return self._traced_score(self._scorer)

    @cached_property
    def _quick_score(self) -> Callable[..., Any]:
        return self._score if self._learner is self._scorer else self._traced_score(self._learner)

    def _traced_score(self, network: "_Network") -> Callable[..., Any]:
        return _traced(network.score, {name: self._inputs[name] for name in self._scored})

    def _state_variables(self) -> dict[str, Any]:
        """Return a dict of the variables to save, keyed by name. Names contain positions because Keras numbers layers
        differently in each model.
        """
        # The learning rate comes from the config, so that a run can resume with a lower one.
        slots = [variable for variable in self._optimizer.variables if _short_name(variable) != "learning_rate"]
        groups = {
            "model": self._variables,
            "optimizer": slots,
            "average": self._average.variables if self._average else [],
            "loss": [self._loss_sum, self._added_sum, self._finite_steps],
            "loss_scale": [self._loss_scale.scale, self._loss_scale.good_steps] if self._loss_scale else [],
        }
        return {
            f"{group}/{position}/{_short_name(variable)}": variable
            for group, variables in groups.items()
            for position, variable in enumerate(variables)
        }

    def _train_batch(self, inputs: Mapping[str, Any], labels: Any) -> None:
        scale = self._loss_scale.scale if self._loss_scale else None
        if self._world.size == 1:
            loss, added, gradients = self._learner.gradients(inputs, labels, scale)
            num_rows = tf.cast(tf.shape(labels)[0], tf.float64)
        else:
            loss, added, gradients, num_rows = self._gradients_of_all(inputs, labels, scale)
        if self._loss_scale:
            self._loss_scale.apply(gradients, self._apply)
        else:
            self._apply(gradients)
        self._added_sum.assign_add(tf.cast(added, tf.float64) * num_rows)
        total = self._loss_sum.assign_add(tf.cast(loss, tf.float64) * num_rows)
        # Once the sum is not finite it stays so, and the counter stops.
        self._finite_steps.assign_add(tf.cast(tf.math.is_finite(total), tf.int64))

    def _gradients_of_all(self, inputs: Mapping[str, Any], labels: Any, scale: Any) -> tuple[Any, Any, list[Any], Any]:
        """Compute the mean loss and gradients over all rows, as if the batches of all workers were one batch.

        Each worker's loss is weighted by its number of rows before the backward pass, so that gradients only need to be
        summed. The weights sum to 1 if all batches are full. Otherwise the gradients are divided by the sum afterwards;
        it is reduced together with the gradients, because a separate reduction would make workers wait for each other
        twice per step. The loss scale is removed later, where the gradients are checked to be finite.
        """
        num_rows = tf.cast(tf.shape(labels)[0], tf.float32)
        share = num_rows / self._batch_size
        weight = share if scale is None else share * scale
        loss, added, gradients = self._learner.gradients(inputs, labels, weight)
        values = [*gradients, loss * share, added * share, num_rows]
        shapes = [*(tuple(weight.shape) for weight in self._scorer.weights), (), (), ()]
        max_rows = self._batch_size // self._world.size
        *totals, loss, added, total_rows = self._world.all_reduce(values, shapes, max_rows=max_rows)
        sum_of_shares = total_rows / self._batch_size
        gradients = [divided(total, sum_of_shares) for total in totals]
        return loss / sum_of_shares, added / sum_of_shares, gradients, tf.cast(total_rows, tf.float64)

    def _apply(self, gradients: list[Any]) -> None:
        self._optimizer.apply_gradients(list(zip(gradients, self._scorer.weights, strict=True)))


class _Network:
    """A model split into a feature lookup and a dense network, which may be compiled with XLA."""

    def __init__(self, model: Any, heads: Sequence[Head], *, xla: bool) -> None:
        self._heads = heads
        self.features, self._head = split_at_features(model)
        self.tables = [variable for layer in self.features for variable in layer.trainable_variables]
        self.dense = self._head.trainable_variables
        self.weights = [*self.tables, *self.dense]
        self._head_score: Callable[..., Any] = self._score_rows
        self._head_gradients: Callable[..., Any] = self._row_gradients
        if xla:
            self._head_score = tf.function(self._score_rows, jit_compile=True, autograph=False)
            self._head_gradients = tf.function(self._row_gradients, jit_compile=True, autograph=False)

    def score(self, inputs: Mapping[str, Any]) -> Any:
        """Return the concatenated float32 scores of all heads, of shape (N, sum of widths)."""
        return self._head_score(self._look_up(inputs))

    def gradients(self, inputs: Mapping[str, Any], labels: Any, scale: Any) -> tuple[Any, Any, list[Any]]:
        """Return the loss and extra terms as float32 scalars, and the gradients w.r.t. `weights`, scaled by `scale`."""
        with tf.GradientTape() as tape:
            rows = self._look_up(inputs)
        loss, added, of_rows, of_dense = self._head_gradients(rows, labels, scale)
        return loss, added, [*tape.gradient(rows, self.tables, of_rows), *of_dense]

    def _look_up(self, inputs: Mapping[str, Any]) -> list[Any]:
        # Not `layer(…)`: Keras would compute the regularizers in the layer's precision, in which they overflow.
        return [layer.call(inputs) for layer in self.features]

    def _score_rows(self, rows: list[Any]) -> Any:
        outputs = tf.nest.flatten(self._head(rows, training=False))[: len(self._heads)]
        return outputs[0] if len(outputs) == 1 else tf.concat(outputs, axis=1)

    def _row_gradients(self, rows: list[Any], labels: Any, scale: Any) -> tuple[Any, Any, Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            outputs = tf.nest.flatten(self._head(rows, training=True))
            loss = loss_of(self._heads, labels, outputs)
            added = tf.add_n([tf.zeros(()), *self._penalties(rows), *self._head.losses])
            objective = loss + added if scale is None else (loss + added) * scale
        of_rows, of_dense = tape.gradient(objective, [rows, self.dense])
        # The tape treats a missing output gradient as ones; masks have no gradient, so pass zeros.
        of_rows = tf.nest.map_structure(lambda of, row: tf.zeros_like(row) if of is None else of, of_rows, rows)
        return loss, added, of_rows, of_dense

    def _penalties(self, rows: list[Any]) -> list[Any]:
        """Return the activity penalties of the feature layers in float32, averaged over the batch as in Keras."""
        return [
            layer.activity_regularizer(tf.cast(part, tf.float32)) / tf.cast(tf.shape(part)[0], tf.float32)
            for layer, part in zip(self.features, rows, strict=True)
            if layer.activity_regularizer
        ]


class _Average:
    """A running average of the weights. An update reads all weights, including embedding tables."""

    def __init__(self, variables: list[Any]) -> None:
        self._weights = variables
        self.values = [tf.Variable(v, trainable=False, name=_short_name(v)) for v in variables]
        self._count = tf.Variable(0.0, trainable=False, name="count")
        self.variables = [*self.values, self._count]
        self.update = tf.function(self._update, autograph=False)
        self.swap = tf.function(self._swap, autograph=False)

    def _update(self) -> None:
        share = share_of_sample(self._count.assign_add(1.0))
        for value, variable in zip(self.values, self._weights, strict=True):
            value.assign_add(share * (variable - value))

    def _swap(self) -> None:
        for value, variable in zip(self.values, self._weights, strict=True):
            kept = tf.identity(variable)
            variable.assign(value)
            value.assign(kept)


def _built(build: Callable[[], Any], policy: str, *, keep: list[Any] | None = None, take: Sequence[Any] = ()) -> Any:
    """Build a model under a precision policy, with its own generators for dropout."""
    remaining = iter(take)

    def variable(create: Callable[..., Any], **arguments: Any) -> Any:
        if keep is None:
            return next(remaining)
        keep.append(create(**arguments))
        return keep[-1]

    precision, random = keras.mixed_precision, keras.backend.experimental
    policy_before, had_generators = precision.global_policy(), random.is_tf_random_generator_enabled()
    precision.set_global_policy(policy)
    random.enable_tf_random_generator()
    try:
        with tf.variable_creator_scope(variable):
            # Without AutoGraph: rewriting the layers for this single trace would take longer than the trace.
            return tf.autograph.experimental.do_not_convert(build)()
    finally:
        precision.set_global_policy(policy_before)
        if not had_generators:
            random.disable_tf_random_generator()


def _check_network(model: Any, network: str, heads: Sequence[Head]) -> None:
    """Raise ConfigError unless a network, which may be a user's, is a Keras model with the outputs of all heads."""
    if not isinstance(model, keras.Model):
        raise ConfigError(f"network {network!r} returned a {type(model).__name__}, expected a tf_keras.Model.")
    found, expected = [output.shape[-1] for output in model.outputs], [head.width for head in heads]
    if len(heads) == 1:
        expected *= len(found)  # all are fitted to the label
    if found != expected:
        labels = ", ".join(f"{head.width} for {head.column!r}" for head in heads)
        raise ConfigError(
            f"network {network!r} has outputs of widths {found}, expected {labels}. Use `head.width` for each output."
        )


def _traced(function: Callable[..., Any], *signature: Any) -> Callable[..., Any]:
    traced: Callable[..., Any] = tf.function(function, autograph=False).get_concrete_function(*signature)
    return traced


def _needs_xla(precision: str) -> bool:
    """Whether the precision requires XLA, which accumulates float16 in float32, unlike TensorFlow's own CPU kernels.

    Measured with 2.21: matrix products are right, but `reduce_sum` of 20,000 equal terms is an eighth of their sum.
    """
    return precision == "float16" and not tf.config.list_physical_devices("GPU")


def _short_name(variable: Any) -> str:
    return str(variable.name.split("/")[-1].removesuffix(":0"))


def _make_optimizer(config: TrainConfig, num_steps: int) -> Any:
    schedule = LearningRateSchedule.of(config, num_steps)
    return make_optimizer(
        config.optimizer,
        learning_rate=config.learning_rate if schedule.is_constant else ScheduledRate(config.learning_rate, schedule),
        batch_size=config.batch_size,
        table_lr_scale=config.table_lr_scale,
        weight_decay=config.weight_decay,
    )


def loss_of(heads: Sequence[Head], labels: Any, outputs: Sequence[Any]) -> Any:
    """Return the weighted mean loss over all heads as a scalar.

    With one head, all outputs are fitted to its label: SIM has two. With several, a row without a head's label
    contributes zero to its loss, and each loss is a mean over all rows, so that the losses of parts of a batch add up
    to the batch's.
    """
    if len(heads) == 1:
        losses = [tf.reduce_mean(_row_losses(heads[0], labels, output)) for output in outputs]
        return tf.add_n(losses) / len(losses)
    weighted = []
    for head, own, output in zip(heads, tf.unstack(labels[..., None], axis=1), outputs, strict=False):
        has_label = tf.math.is_finite(own)
        losses = _row_losses(head, tf.where(has_label, own, tf.zeros_like(own)), output)
        weighted.append(head.weight * tf.reduce_mean(losses * tf.cast(has_label[:, 0], losses.dtype)))
    return tf.add_n(weighted) / sum(head.weight for head in heads)


def _row_losses(head: Head, labels: Any, output: Any) -> Any:
    """Return per-row losses of shape (N,) for labels of shape (N, 1) and an output of shape (N, width)."""
    # Keras computes cross-entropies from logits if the probabilities are the direct output of sigmoid or softmax.
    if head.task == BINARY:
        return keras.losses.binary_crossentropy(labels, output)
    if head.task == MULTICLASS:
        return keras.losses.sparse_categorical_crossentropy(labels, output)
    return tf.reduce_mean(tf.square((labels - output) / head.deviation), axis=1)
