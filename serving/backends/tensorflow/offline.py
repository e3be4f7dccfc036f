"""A SavedModel outside of Triton: see `serving.backends.offline.OfflineModel`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from numpy.typing import NDArray

from serving.backends.tensorflow.session import make_callable, open_saved_model
from serving.merlin import PredictTensorflow
from serving.plan import Padded, padded_inputs
from workflows.errors import ArtifactError
from workflows.feature_spec import FeatureSpec
from workflows.tensor_names import NNZS, OFFSETS, PADDED_SIGNATURE, RAGGED_SIGNATURE, SCORE, VALUES


class TensorFlowModel:
    """A SavedModel; NVTabular's rows go through its ragged signature, a plan's through the padded one."""

    OPERATOR = PredictTensorflow
    OUTPUT = SCORE
    PARAMETERS: Mapping[str, str] = {"TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": PADDED_SIGNATURE}

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._loaded = tf.saved_model.load(str(path))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise ArtifactError(f"{path} is not a SavedModel that can be loaded ({error}). Train again.") from None
        self._signatures = self._loaded.signatures
        for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE):
            if name not in self._signatures:
                raise ArtifactError(
                    f"{path} has signatures {sorted(self._signatures)}, expected {name!r}. Train again."
                )

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:  # noqa: ARG002  (a SavedModel says itself what it takes)
        """See `OfflineModel`."""
        inputs = self._signatures[PADDED_SIGNATURE].structured_input_signature[1]
        return {
            name.removesuffix(VALUES): tensor.dtype.name for name, tensor in inputs.items() if not name.endswith(NNZS)
        }

    def operator(self, encoded: Any) -> Any:  # noqa: ARG002  (a SavedModel says itself what it takes)
        """See `OfflineModel`."""
        return PredictTensorflow(str(self._path))

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """See `OfflineModel`."""
        return self._score(RAGGED_SIGNATURE, ragged_inputs(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """See `ScoringModel`."""
        return self._score(PADDED_SIGNATURE, padded_inputs(columns))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """See `ScoringModel`."""
        session, signatures = open_saved_model(self._path)
        return make_callable(session, signatures[PADDED_SIGNATURE], names, [SCORE])

    def _score(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Run a signature, cast to what it takes, so that int32 and int64 models are both fed."""
        signature = self._signatures[name]
        expected = signature.structured_input_signature[1]
        if set(expected) != set(arrays):
            raise ArtifactError(
                f"the SavedModel takes {sorted(expected)}, the workflow makes {sorted(arrays)}. They do not match."
            )
        tensors = {name: tf.constant(arrays[name], dtype=spec.dtype) for name, spec in expected.items()}
        scores: NDArray[Any] = signature(**tensors)[SCORE].numpy().reshape(-1)
        return scores


def ragged_inputs(frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Encoded rows of NVTabular as inputs of the ragged signature."""
    inputs: dict[str, NDArray[Any]] = {}
    for name in frame.columns:
        if frame[name].dtype == object:
            inputs[name + VALUES] = np.concatenate([*frame[name], np.array([], np.int64)])
            inputs[name + OFFSETS] = np.concatenate(([0], np.cumsum(frame[name].map(len)))).astype(np.int32)
        else:
            inputs[name] = frame[name].to_numpy()
    return inputs
