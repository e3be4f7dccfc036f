"""A multilayer perceptron with the defaults of RealMLP-TD (Holzmüller et al. 2024, arXiv:2407.04491).

Several members of equal shape train at once, each with weights and rows of its own: one per fold when they are
compared, and as many on all rows, whose mean is served. The number of steps depends on the number of rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rankline.training.models.auto.learner import Deadline, Fitted, Learner, activated, add_activation, error_of
from rankline.training.models.auto.rows import Floats, Fold, Ints, Rows
from rankline.training.models.matrix import Matrix, add_places
from rankline.workflows.schema.targets import BINARY, MULTICLASS, REGRESSION, Head

if TYPE_CHECKING:
    from rankline.workflows.onnx.graph import Graph

_MAX_ONE_HOT = 12  # ids, of which three are padding, null and unseen
_ID_DIM, _FREQUENCIES, _NUMBER_DIM = 8, 16, 4
_HIDDEN = (256, 256, 256)
_DROPOUT, _WEIGHT_DECAY = 0.15, 0.02
_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8
_LEARNING_RATES = {REGRESSION: 0.2, BINARY: 0.04, MULTICLASS: 0.04}
_RATE_FACTORS = {"scale": 6.0, "bias": 0.1, "slope": 0.1, "number": 0.1}  # by the first word of a weight's name
_DECAYED = ("scale", "kernel", "ids")
_MAX_EPOCHS, _MIN_STEPS, _MAX_STEPS = 256, 500, 2000
_NUM_CHECKS = 20  # in the course of the steps
_STEPS_PER_CALL = 50
_TIMED_STEPS, _SHARE_OF_TIME = 8, 0.7  # to find how many steps the deadline allows
_IS_COMPILED = True  # by XLA, which takes seconds and halves the time of a step
_SCORED_ROWS = 4096
_Weights = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """The matrix as the network takes it: numbers, one-hot ids, and places in a table of embeddings."""

    numbers: Ints
    center: Floats
    scale: Floats
    hot: Ints  # columns
    hot_begins: Ints
    is_seen: Floats  # (one-hot values,): 0 for ids without rows
    embedded: Ints  # columns
    begins: Ints
    has_vector: Floats  # (ids in the table, 1): 0 for ids without rows

    @classmethod
    def of(cls, rows: Rows) -> "_Inputs":
        numbers = np.setdiff1d(np.arange(rows.matrix.shape[1]), list(rows.num_ids))
        values = rows.matrix[:, numbers].astype(np.float64)
        low, center, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0) if len(values.T) else np.zeros((3, 0))
        spread = np.where(high > low, high - low, np.ptp(values, axis=0) / 2)
        hot = {column: size for column, size in rows.num_ids.items() if size <= _MAX_ONE_HOT}
        embedded = {column: size for column, size in rows.num_ids.items() if size > _MAX_ONE_HOT}
        hot_begins = np.cumsum([0, *hot.values()])
        places = rows.matrix[:, list(hot)].astype(np.int64) + hot_begins[:-1]
        begins = np.cumsum([0, *embedded.values()])
        table_places = rows.matrix[:, list(embedded)].astype(np.int64) + begins[:-1]
        return cls(
            numbers=numbers,
            center=center,
            scale=np.where(spread > 0, spread, 1.0),
            hot=np.array(list(hot), np.int64),
            hot_begins=hot_begins[:-1],
            is_seen=_occur(places, hot_begins[-1]),
            embedded=np.array(list(embedded), np.int64),
            begins=begins[:-1],
            has_vector=_occur(table_places, begins[-1])[:, None],
        )

    def of_matrix(self, matrix: Matrix) -> tuple[Matrix, Matrix, NDArray[np.int32]]:
        scaled = (matrix[:, self.numbers] - self.center) / self.scale
        places = matrix[:, self.hot].astype(np.int64) + self.hot_begins
        hot = np.zeros((len(matrix), len(self.is_seen)), np.float32)
        np.put_along_axis(hot, places, 1.0, axis=1)
        embedded = matrix[:, self.embedded].astype(np.int64) + self.begins
        clipped = scaled / np.sqrt(1 + np.square(scaled / 3))
        return clipped.astype(np.float32), (hot * self.is_seen).astype(np.float32), embedded.astype(np.int32)

    @property
    def width(self) -> int:
        return len(self.numbers) * _NUMBER_DIM + len(self.is_seen) + len(self.embedded) * _ID_DIM


def _occur(places: Ints, size: int) -> Floats:
    return (np.bincount(places.ravel(), minlength=size) > 0).astype(np.float64)


class _Members:
    """Networks of equal shape over the same rows, as TensorFlow variables whose first axis is the member."""

    def __init__(self, rows: Rows, count: int, batch_size: int) -> None:
        import tensorflow as tf

        self.rows, self.count, self._batch_size = rows, count, batch_size
        self.inputs = _Inputs.of(rows)
        self._data = [tf.constant(part) for part in self.inputs.of_matrix(rows.matrix)]
        is_number = rows.head.task == REGRESSION
        self.mean = float(rows.labels.mean()) if is_number else 0.0
        self.deviation = float(rows.labels.std()) if is_number else 1.0
        dtype = np.int32 if rows.head.task == MULTICLASS else np.float32
        self._labels = tf.constant(((rows.labels - self.mean) / (self.deviation or 1.0)).astype(dtype))
        self._weights = {name: tf.Variable(value) for name, value in self._initial(rows.seed).items()}
        self._moments = {
            name: tuple(tf.Variable(tf.zeros_like(weight)) for _ in range(2)) for name, weight in self._weights.items()
        }
        self._steps = tf.function(self._take_steps, jit_compile=_IS_COMPILED)

    @property
    def weights(self) -> Mapping[str, NDArray[np.float32]]:
        return {name: weight.numpy() for name, weight in self._weights.items()}

    def restart(self) -> None:
        for name, value in self._initial(self.rows.seed).items():
            self._weights[name].assign(value)
            for moment in self._moments[name]:
                moment.assign(moment * 0)

    def train(self, learned: Sequence[Ints], total: int, first: int, last: int) -> None:
        """Take steps `first` to `last` of a schedule of `total` steps. Member m learns from the rows `learned[m]`."""
        import tensorflow as tf

        shape = (_STEPS_PER_CALL, self._batch_size)
        for begin in range(first, last, _STEPS_PER_CALL):
            drawn = [_drawn(numbers, (self.rows.seed, member, begin), shape) for member, numbers in enumerate(learned)]
            orders = np.stack(drawn, axis=1).astype(np.int32)  # (steps, members, batch)
            count = min(_STEPS_PER_CALL, last - begin)
            self._steps(tf.constant(orders), *map(tf.constant, (float(begin), float(total), count)))

    def scores(self, asked: Sequence[Ints]) -> list[Floats]:
        """Return the scores of the rows `asked[m]` by each member m."""
        import tensorflow as tf

        longest = max(map(len, asked))
        padded = np.stack([np.pad(numbers, (0, longest - len(numbers))) for numbers in asked]).astype(np.int32)
        parts = [
            self._logits(tf.constant(padded[:, begin : begin + _SCORED_ROWS])).numpy()
            for begin in range(0, longest, _SCORED_ROWS)
        ]
        logits = np.concatenate(parts, axis=1).astype(np.float64) * self.deviation + self.mean
        return [activated(self.rows.head, own[: len(numbers)]) for own, numbers in zip(logits, asked, strict=True)]

    def _initial(self, seed: int) -> _Weights:
        rng, inputs, count = np.random.default_rng(seed), self.inputs, self.count
        made: dict[str, Any] = {}
        if num_numbers := len(inputs.numbers):
            bound, dim = _FREQUENCIES**-0.5, _NUMBER_DIM - 1
            made["number_frequencies"] = rng.normal(0, 0.1, (count, num_numbers, _FREQUENCIES))
            made["number_phases"] = rng.uniform(-math.pi, math.pi, (count, num_numbers, _FREQUENCIES))
            made["number_kernel"] = rng.uniform(-bound, bound, (count, num_numbers, _FREQUENCIES, dim))
            made["number_bias"] = rng.uniform(-bound, bound, (count, num_numbers, dim))
        if len(inputs.has_vector):
            made["ids"] = rng.normal(size=(count, len(inputs.has_vector), _ID_DIM)) * inputs.has_vector
        made["scale"] = np.ones((count, 1, inputs.width))
        widths = (inputs.width, *_HIDDEN)
        for number, (width, units) in enumerate(zip(widths, _HIDDEN, strict=False)):
            made[f"kernel_{number}"] = rng.normal(size=(count, width, units))
            made[f"bias_{number}"] = rng.normal(size=(count, 1, units))
            made[f"slope_{number}"] = np.ones((count, 1, units))
        made["kernel_last"] = np.zeros((count, widths[-1], self.rows.head.width))
        made["bias_last"] = np.zeros((count, 1, self.rows.head.width))
        return {name: value.astype(np.float32) for name, value in made.items()}

    def _logits(self, places: Any, dropout: Any = None, step: Any = None) -> Any:
        import tensorflow as tf

        weights, parts = self._weights, []
        numbers, hot, embedded = (tf.gather(part, places) for part in self._data)
        if numbers.shape[-1]:
            waves = tf.cos(
                2 * math.pi * numbers[..., None] * weights["number_frequencies"][:, None]
                + weights["number_phases"][:, None]
            )
            vectors = tf.einsum("mbch,mchd->mbcd", waves, weights["number_kernel"]) + weights["number_bias"][:, None]
            parts.append(_flat(tf.concat([numbers[..., None], vectors], axis=3)))
        parts.append(hot)
        if embedded.shape[-1]:
            parts.append(_flat(tf.gather(weights["ids"], embedded, batch_dims=1)))
        x = tf.concat(parts, axis=2) * weights["scale"]
        for number in range(len(_HIDDEN)):
            x = _linear(x, weights[f"kernel_{number}"], weights[f"bias_{number}"])
            curved = x * tf.tanh(tf.math.softplus(x)) if self.rows.head.task == REGRESSION else tf.nn.selu(x)
            x = x + weights[f"slope_{number}"] * (curved - x)
            if dropout is not None:
                seed = tf.stack([self.rows.seed % (1 << 31) + number, tf.cast(step, tf.int32)])
                x = tf.nn.experimental.stateless_dropout(x, dropout, seed)
        return _linear(x, weights["kernel_last"], weights["bias_last"])

    def _losses(self, places: Any, dropout: Any, step: Any) -> Any:
        import tensorflow as tf

        logits, labels, task = self._logits(places, dropout, step), tf.gather(self._labels, places), self.rows.head.task
        if task == MULTICLASS:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if task == BINARY:
            return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits[..., 0])
        return tf.square(logits[..., 0] - labels)

    def _take_steps(self, orders: Any, first: Any, total: Any, count: Any) -> None:
        import tensorflow as tf

        names = list(self._weights)
        number = tf.constant(0)
        while number < count:  # with tf.range, XLA would compile again for every count
            step = first + tf.cast(number, tf.float32)
            done = step / total
            rate = 0.5 * (1 - tf.cos(2 * math.pi * tf.math.log1p(15 * done) / math.log(2)))
            decay = tf.where(done < 0.5, 1.0, 0.5 * (1 + tf.cos(math.pi * (2 * done - 1))))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.reduce_mean(self._losses(orders[number], _DROPOUT * decay, step), axis=1))
            for name, gradient in zip(names, tape.gradient(loss, [self._weights[name] for name in names]), strict=True):
                self._update(name, tf.convert_to_tensor(gradient), step + 1, rate, decay)
            number += 1

    def _update(self, name: str, gradient: Any, step: Any, rate: Any, decay: Any) -> None:
        """Take one step of AdamW."""
        import tensorflow as tf

        weight, (mean, square) = self._weights[name], self._moments[name]
        kind = name.split("_")[0]
        rate = rate * _LEARNING_RATES[self.rows.head.task] * _RATE_FACTORS.get(kind, 1.0)
        mean.assign(_BETA1 * mean + (1 - _BETA1) * gradient)
        square.assign(_BETA2 * square + (1 - _BETA2) * tf.square(gradient))
        unbiased = mean / (1 - tf.pow(_BETA1, step)), square / (1 - tf.pow(_BETA2, step))
        kept = 1 - rate * decay * (_WEIGHT_DECAY if kind in _DECAYED else 0.0)
        weight.assign(kept * weight - rate * unbiased[0] / (tf.sqrt(unbiased[1]) + _EPSILON))


def _drawn(numbers: Ints, seed: tuple[int, ...], shape: tuple[int, int]) -> Ints:
    """Return batches of rows, each row once before any twice."""
    rng = np.random.default_rng(seed)
    size = shape[0] * shape[1]
    drawn = np.concatenate([rng.permutation(numbers) for _ in range(-(-size // len(numbers)))])
    return drawn[:size].reshape(shape)


def _flat(x: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(x, (*tf.unstack(tf.shape(x))[:2], x.shape[2] * x.shape[3]))


def _linear(x: Any, kernel: Any, bias: Any) -> Any:
    """Apply a layer whose weights have deviation 1 (neural tangent parametrization)."""
    import tensorflow as tf

    return tf.matmul(x, kernel) / math.sqrt(kernel.shape[1]) + bias


@dataclass(frozen=True, kw_only=True)
class RealMLPModel(Fitted):
    head: Head
    inputs: _Inputs
    weights: Mapping[str, NDArray[np.float32]]
    mean: float
    deviation: float
    lowest: float  # bounds of the predictions
    highest: float

    @property
    def num_parameters(self) -> int:
        return sum(weight.size for weight in self.weights.values())

    def scores(self, matrix: Matrix) -> Floats:
        import onnxruntime
        from onnx import TensorProto

        from rankline.workflows.onnx.graph import Graph

        graph = Graph()
        taken = graph.take("matrix", TensorProto.FLOAT, matrix.shape[1])
        graph.give(self.add_to(graph, taken), self.head.width)
        session = onnxruntime.InferenceSession(
            graph.model("realmlp").SerializeToString(), providers=["CPUExecutionProvider"]
        )
        parts = np.split(matrix, range(_SCORED_ROWS, len(matrix), _SCORED_ROWS))
        return np.concatenate([session.run(None, {"matrix": part})[0] for part in parts]).astype(np.float64)

    def add_to(self, graph: "Graph", matrix: str) -> str:
        inputs, weights, parts = self.inputs, self.weights, []

        def constant(value: Any) -> str:
            return graph.constant(value, np.float32)

        num_members = len(self.weights["scale"])
        if len(inputs.numbers):
            taken = graph.add("Gather", matrix, graph.constant(inputs.numbers), axis=1)
            scaled = graph.add("Div", graph.add("Sub", taken, constant(inputs.center)), constant(inputs.scale))
            third = graph.add("Div", scaled, constant(3.0))
            size = graph.add("Sqrt", graph.add("Add", graph.add("Mul", third, third), constant(1.0)))
            shape = graph.constant([1, -1, len(inputs.numbers), 1, 1])
            numbers = graph.add("Reshape", graph.add("Div", scaled, size), shape)
            frequencies = 2 * math.pi * weights["number_frequencies"][:, None, :, None]
            phases = weights["number_phases"][:, None, :, None]
            angles = graph.add("Add", graph.add("Mul", numbers, constant(frequencies)), constant(phases))
            waves = graph.add("Cos", angles)
            vectors = graph.add("MatMul", waves, constant(weights["number_kernel"][:, None]))  # (M, N, C, 1, 3)
            vectors = graph.add("Add", vectors, constant(weights["number_bias"][:, None, :, None]))
            own = graph.add("Expand", numbers, graph.constant([num_members, 1, 1, 1, 1]))
            joined = graph.add("Concat", own, vectors, axis=4)
            width = len(inputs.numbers) * _NUMBER_DIM
            parts.append(graph.add("Reshape", joined, graph.constant([num_members, -1, width])))
        if len(inputs.is_seen):
            hot = self._one_hot(graph, matrix)
            parts.append(graph.add("Expand", hot, graph.constant([num_members, 1, 1])))
        if len(inputs.embedded):
            places = add_places(graph, matrix, inputs.embedded, inputs.begins)
            found = graph.add("Gather", constant(weights["ids"]), places, axis=1)  # (M, N, E, 8)
            shape = graph.constant([num_members, -1, len(inputs.embedded) * _ID_DIM])
            parts.append(graph.add("Reshape", found, shape))
        x = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=2)
        x = graph.add("Mul", x, constant(weights["scale"]))
        for number in range(len(_HIDDEN)):
            x = self._layer(graph, x, number)
        logits = self._layer(graph, x, "last")
        if self.head.task == REGRESSION:
            values = graph.add("Add", graph.add("Mul", logits, constant(self.deviation)), constant(self.mean))
            scores = graph.add("Clip", values, constant(self.lowest), constant(self.highest))
        else:
            scores = add_activation(graph, self.head, logits)
        return graph.add("ReduceMean", scores, axes=[0], keepdims=0)

    def _one_hot(self, graph: "Graph", matrix: str) -> str:
        inputs = self.inputs
        places = add_places(graph, matrix, inputs.hot, inputs.hot_begins)
        size = len(inputs.is_seen)
        hot = graph.add("OneHot", places, graph.constant(size), graph.constant([0, 1], np.float32), axis=-1)
        summed = graph.add("ReduceSum", hot, graph.constant([1]), keepdims=0)
        return graph.add("Mul", summed, graph.constant(inputs.is_seen, np.float32))

    def _layer(self, graph: "Graph", x: str, number: int | str) -> str:
        kernel = self.weights[f"kernel_{number}"]
        product = graph.add("MatMul", x, graph.constant(kernel / math.sqrt(kernel.shape[1]), np.float32))
        x = graph.add("Add", product, graph.constant(self.weights[f"bias_{number}"], np.float32))
        if number == "last":
            return x
        if self.head.task == REGRESSION:
            curved = graph.add("Mul", x, graph.add("Tanh", graph.add("Softplus", x)))
        else:
            curved = graph.add("Selu", x)
        slope = graph.constant(self.weights[f"slope_{number}"], np.float32)
        return graph.add("Add", x, graph.add("Mul", graph.add("Sub", curved, x), slope))


class RealMLP(Learner):
    name: ClassVar[str] = "realmlp"
    packages: ClassVar[tuple[str, ...]] = ("tensorflow",)
    max_rows = 1_000_000

    def __init__(self) -> None:
        self._members: _Members | None = None
        self._total = self._last = 0

    def held_out_scores(self, rows: Rows, folds: Sequence[Fold], deadline: Deadline) -> Floats:
        members = self._started(rows, len(folds))
        learned, held = ([fold[part] for fold in folds] for part in (0, 1))
        affordable = self._affordable(members, learned, deadline)
        if affordable < _MIN_STEPS and (num_folds := int(len(folds) * affordable / _MIN_STEPS)):
            return self.held_out_scores(rows, folds[:num_folds], deadline)
        total = self._total = int(min(self._total, affordable))
        ends = [total * number // _NUM_CHECKS for number in range(1, _NUM_CHECKS + 1)]
        made, errors, began_s = [], [], monotonic()
        for begin, end in zip((0, *ends), ends, strict=False):
            members.train(learned, total, begin, end)
            scores = np.full((len(rows), rows.head.width), np.nan)
            for numbers, own in zip(held, members.scores(held), strict=True):
                scores[numbers] = own
            is_held = ~np.isnan(scores[:, 0])
            made.append(scores)
            errors.append(error_of(rows.head, rows.labels[is_held], scores[is_held]))
            if len(made) >= _NUM_CHECKS // 4:  # the first are slower
                step_s = (monotonic() - began_s) / end
                deadline.check(step_s * end)  # to train on all rows
                if step_s * (end + 2 * total / _NUM_CHECKS) > deadline.left_s:
                    break
        best = int(np.argmin(errors))
        self._last = ends[best]
        return made[best]

    def fit(self, rows: Rows) -> RealMLPModel:
        members = self._members
        if members is None or members.rows is not rows:  # otherwise the compiled steps are used again
            members = self._started(rows, 1)
        members.restart()
        members.train([np.arange(len(rows))] * members.count, self._total, 0, self._last)
        weights = dict(members.weights)
        return RealMLPModel(
            head=rows.head,
            inputs=members.inputs,
            weights=weights,
            mean=members.mean,
            deviation=members.deviation,
            lowest=float(rows.labels.min()),
            highest=float(rows.labels.max()),
        )

    def _affordable(self, members: _Members, learned: Sequence[Ints], deadline: Deadline) -> float:
        """Return how many steps there is time for. They are taken twice: to compare and to train."""
        members.train(learned, self._total, 0, 1)  # compiles, which the time of a step must not include
        began_s = monotonic()
        members.train(learned, self._total, 0, _TIMED_STEPS)
        step_s = (monotonic() - began_s) / _TIMED_STEPS
        members.restart()
        affordable = _SHARE_OF_TIME * deadline.left_s / (2 * step_s)
        if affordable * members.count < _MIN_STEPS:  # not even for one fold
            deadline.check(2 * _MIN_STEPS * step_s / members.count / _SHARE_OF_TIME)
        return affordable

    def _started(self, rows: Rows, count: int) -> _Members:
        batch_size = next((size for most, size in ((1024, 64), (20_000, 128)) if len(rows) <= most), 256)
        self._total = self._last = min(max(_MAX_EPOCHS * len(rows) // batch_size, _MIN_STEPS), _MAX_STEPS)
        self._members = _Members(rows, count, batch_size)
        return self._members
