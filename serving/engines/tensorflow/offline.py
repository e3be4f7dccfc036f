"""A SavedModel loaded into this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tensorflow as tf
from numpy.typing import NDArray

from rankline.serving.engines.offline import scores_of
from rankline.serving.engines.tensorflow.allowed_operations import check_loaded
from rankline.serving.engines.tensorflow.session import make_callable, open_saved_model
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded, padded_tensors, ragged_tensors
from rankline.workflows.schema.tensor_names import NNZS, PADDED_SIGNATURE, RAGGED_SIGNATURE, VALUES, Signature


class Model:
    """An `OfflineModel` with a ragged signature for NVTabular's rows and a padded signature for a plan's rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        check_loaded(path)
        try:
            self._loaded = tf.saved_model.load(str(path))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise ArtifactError(f"{path} is not a loadable SavedModel ({error}). Train again.") from None
        signatures = self._loaded.signatures
        for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE):
            if name not in signatures:
                raise ArtifactError(f"{path} has signatures {sorted(signatures)}, expected {name!r}. Train again.")
        self._signatures = {name: Signature(signatures[name]) for name in (RAGGED_SIGNATURE, PADDED_SIGNATURE)}

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:  # noqa: ARG002  (stated by the SavedModel)
        inputs = self._signatures[PADDED_SIGNATURE].inputs.items()
        return {name.removesuffix(VALUES): tensor.dtype.name for name, tensor in inputs if not name.endswith(NNZS)}

    def operator(self, encoded: Any) -> Any:  # noqa: ARG002  (stated by the SavedModel)
        """Return a placeholder operator, because merlin-systems' own uses argument names instead of tensor names."""
        from rankline.serving.engines.merlin_operators import Predict  # slow import, needed by exports only

        return Predict(sorted(self._signatures[PADDED_SIGNATURE].function.structured_outputs))

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Score rows through the ragged signature, as merlin-systems requires."""
        return self._score(RAGGED_SIGNATURE, ragged_tensors(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        return self._score(PADDED_SIGNATURE, padded_tensors(columns))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """Return a function that scores rows in a separate session, as the Triton backend does."""
        session, signatures = open_saved_model(self._path)
        signature = signatures[PADDED_SIGNATURE]
        return make_callable(session, signature, names, sorted(signature.outputs))

    def _score(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Cast the arrays to the dtypes of a signature's inputs, such as int32 or int64, and run the signature."""
        signature = self._signatures[name]
        expected = signature.inputs
        if set(expected) != set(arrays):
            raise ArtifactError(
                f"the SavedModel expects the inputs {sorted(expected)}, but the workflow produces {sorted(arrays)}."
            )
        tensors = {name: tf.constant(arrays[name], dtype=spec.dtype) for name, spec in expected.items()}
        return scores_of({name: output.numpy() for name, output in signature(**tensors).items()})
