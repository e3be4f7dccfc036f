"""Training steps in which no sum is rounded, so that the workers' gradients are those of one process to the last bit.

All numbers are small multiples of powers of two, and there are few enough of them that every partial sum fits into
the 24 bits of a float32: weights are rounded to eighths and fourths before each step, and batches have 64 rows, or half
of them. The sigmoid would not give such numbers. So the units of the last hidden layer are pairs, which the logit adds
with opposite signs: it is 0, its probability 1/2, and the gradient of a row's loss 1/2 or -1/2 over the number of rows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from rankline.training.distributed.communicator import Communicator
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import FeatureSpec

BATCH_SIZE = 64
STEPS = ((40, 24), (40, 24), (20, 12))  # rows of worker 0 and of worker 1: uneven, and the last batch is not whole
L2 = 2.0**-6  # of what is to stay exact


def take_exact_steps(trainer: TensorFlowTrainer, spec: FeatureSpec, world: Communicator) -> None:
    """Some steps of a trainer whose model is the MLP with two hidden layers, and whose `batch_size` is `BATCH_SIZE`."""
    rng = np.random.default_rng(0)
    for rows in STEPS:
        _round_weights(trainer.model)
        ends = np.cumsum([0, *rows]) if world.size > 1 else [0, sum(rows)]
        batch = list(_rows(spec, sum(rows), rng))
        trainer.step(*_as_tensors(spec, batch[ends[world.rank] : ends[world.rank + 1]]))
        trainer.average()


def _round_weights(model: Any) -> None:
    *_, last_hidden, logit = (layer for layer in model.layers if hasattr(layer, "kernel"))
    for weight in model.trainable_variables:
        value = weight.numpy()
        if "linear" in weight.name or weight is logit.bias:
            value = np.zeros_like(value)
        elif weight is logit.kernel:
            value = np.resize([0.5, -0.5, 0.25, -0.25], value.shape)
        else:
            value = np.clip(np.round(64 * value) / 8 if "embedding" in weight.name else np.round(8 * value) / 4, -1, 1)
        if weight is last_hidden.kernel or weight is last_hidden.bias:
            value[..., 1::2] = value[..., ::2]
        weight.assign(value)


def _rows(spec: FeatureSpec, num_rows: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Rows whose lists have a power of two of elements, for they are averaged, and whose numbers are eighths."""
    for _ in range(num_rows):
        row: dict[str, Any] = {"label": rng.integers(2)}
        for name, dtype in spec.model_dtypes.items():
            if spec[name].is_list:
                row[name] = rng.integers(3, spec[name].cardinality, rng.choice([0, 1, 2, 4]))
            else:
                row[name] = rng.integers(8) / 8 if dtype == "float32" else rng.integers(3, spec[name].cardinality)
        yield row


def _as_tensors(spec: FeatureSpec, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    inputs = {}
    for name, dtype in spec.model_dtypes.items():
        values = [row[name] for row in rows]
        if spec[name].is_list:
            inputs[f"{name}__values"] = tf.constant(np.concatenate(values)[:, None], dtype)
            inputs[f"{name}__nnzs"] = tf.constant([[len(value)] for value in values], tf.int32)
        else:
            inputs[name] = tf.constant(np.stack(values)[:, None], dtype)
    return inputs, tf.constant([[row["label"]] for row in rows], tf.float32)
