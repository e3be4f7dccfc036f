"""An ONNX model loaded into this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from rankline.serving.engines.offline import scores_of
from rankline.serving.engines.onnxruntime.session import dtypes_of, make_callable, open_model, reason_of
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded, padded_rows, padded_tensors
from rankline.workflows.schema.tensor_names import NNZS, VALUES


class Model:
    """An `OfflineModel`, if the model was trained to ONNX; accepts padded rows only."""

    def __init__(self, path: Path) -> None:
        try:
            self._session = open_model(path)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ArtifactError(
                f"{path} is not an ONNX model that can be loaded ({reason_of(error)}). Export again."
            ) from None
        self._inputs = dtypes_of(self._session.get_inputs())
        self._outputs = sorted(tensor.name for tensor in self._session.get_outputs())

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:  # noqa: ARG002  (stated by the file)
        return {name.removesuffix(VALUES): str(kind) for name, kind in self._inputs.items() if not name.endswith(NNZS)}

    def operator(self, encoded: Any) -> Any:  # noqa: ARG002  (stated by the file)
        from rankline.serving.engines.merlin_operators import Predict  # slow import, needed by exports only

        return Predict(self._outputs)

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        return self._score(padded_rows(frame))

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        return self._score(padded_tensors(columns))

    def _score(self, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Score arrays, cast to the dtypes of the inputs, since models take int32 or int64."""
        if set(self._inputs) != set(arrays):
            raise ArtifactError(
                f"the ONNX model takes {sorted(self._inputs)}, the workflow makes {sorted(arrays)}. They do not match."
            )
        cast = [arrays[name].astype(dtype, copy=False) for name, dtype in self._inputs.items()]
        outputs = self.served_call(list(self._inputs))(*cast)
        return scores_of(dict(zip(self._outputs, outputs, strict=True)))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        return make_callable(self._session, names, self._outputs)
