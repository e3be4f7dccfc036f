"""Trained models that tests write by hand: signatures of their own in the artifact that a run would have published."""

from collections.abc import Mapping
from typing import Any

from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import KIND, SAVED_MODEL, TrainedModel
from rankline.workflows.storage.artifacts import publish


def publish_saved_model(prepared: PreparedData, model: Any, signatures: Mapping[str, Any]) -> TrainedModel:
    """Publish a `tf.Module` beside the prepared data that it would have been trained on."""
    import tensorflow as tf

    path = prepared.path.with_name("trained")
    made_from = {prepared.manifest.kind: prepared.manifest.fingerprint}
    details = {"run_id": "none", "tracking_uri": "none", "metrics": {}, "format": SAVED_MODEL}
    with publish(path, KIND, made_from=made_from, details=details) as directory:
        tf.saved_model.save(model, str(directory / SAVED_MODEL), signatures=signatures)
    return TrainedModel.load(path)
