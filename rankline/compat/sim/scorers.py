"""In-process scoring, to measure the speed of an exported model, a checkpoint, or an untrained model.

`untrained` is a separate function, so that an untrained model is never used by mistake. Scoring uses only inputs that a
client could send, so negative histories are never read.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from rankline.training.config.train import TrainConfig
from rankline.training.export.saved_model import load_signature
from rankline.training.run.checkpoint import Checkpoint
from rankline.training.trainers.base import Batches
from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, RAGGED_SIGNATURE, VALUES

Inputs = Mapping[str, Any]
Scorer = Callable[[Inputs], Any]
"""Function from a loader's batch to float32 probabilities of shape (N, 1). It returns when the device has finished."""


def saved(path: Path, spec: FeatureSpec) -> Scorer:
    """Return a scorer that runs a Rankline SavedModel as in serving, in float32 and without compilation."""
    signature = load_signature(path, RAGGED_SIGNATURE)
    names = spec.for_scoring.model_dtypes
    has = sorted(name + end for name in names for end in ((VALUES, OFFSETS) if spec[name].is_list else ("",)))
    if (takes := sorted(signature.inputs)) != has:
        raise ArtifactError(
            f"{path} requires the inputs {takes}, but the data provides {has}. Pass a model that was trained on "
            "this data."
        )
    return lambda inputs: _done(next(iter(signature(**_flat(spec, inputs)).values())))


def from_checkpoint(checkpoint: Checkpoint, spec: FeatureSpec, *, precision: str, xla: bool) -> Scorer:
    """Return a scorer for a checkpoint's model that computes in `precision`, using XLA if `xla` is set."""
    config = TrainConfig.from_dict(checkpoint.config)
    trained = _new_trainer(spec, config)
    trained.restore(checkpoint.state)
    wanted = replace(config, precision=precision, xla=xla, weight_averaging=False)
    trainer = _new_trainer(spec, wanted)
    trainer.set_weights(trained.weights())
    return lambda inputs: _done(trainer.quick_score(inputs))


def untrained(spec: FeatureSpec, config: TrainConfig) -> Scorer:
    trainer = _new_trainer(spec, config)
    return lambda inputs: _done(trainer.quick_score(inputs))


def score_each_size(score: Scorer, batches: Batches) -> None:
    """Score one batch of each size, so that TensorFlow traces every shape before the timing starts."""
    sizes = set()
    for inputs, labels in batches:
        if labels.shape[0] not in sizes:
            sizes.add(labels.shape[0])
            score(inputs)


def _new_trainer(spec: FeatureSpec, config: TrainConfig) -> TensorFlowTrainer:
    return TensorFlowTrainer(config.model.training_view(spec), config, num_steps=1)


def _done(scores: Any) -> Any:
    scores.numpy()
    return scores


def _flat(spec: FeatureSpec, inputs: Inputs) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in spec.for_scoring.model_dtypes:
        if spec[name].is_list:
            flat[name + VALUES] = inputs[name + VALUES][:, 0]
            flat[name + OFFSETS] = tf.concat([[0], tf.cumsum(inputs[name + NNZS][:, 0])], axis=0)
        else:
            flat[name] = inputs[name][:, 0]
    return flat
