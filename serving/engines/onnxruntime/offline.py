"""An ONNX model loaded into this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankline.serving.engines.offline import PaddedModel
from rankline.serving.engines.onnxruntime.session import dtypes_of, make_callable, open_model, reason_of
from rankline.workflows.core.errors import ArtifactError
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.tensor_names import NNZS, VALUES


class Model(PaddedModel):
    """An ONNX model in this process. It is an `OfflineModel` if the model was trained directly in the ONNX format."""

    def __init__(self, path: Path) -> None:
        try:
            self._session = open_model(path)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ArtifactError(f"{path} is not a loadable ONNX model ({reason_of(error)}). Export again.") from None
        self.inputs = dtypes_of(self._session.get_inputs())
        self.outputs = sorted(tensor.name for tensor in self._session.get_outputs())

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:  # noqa: ARG002  (stated by the file)
        return {name.removesuffix(VALUES): str(kind) for name, kind in self.inputs.items() if not name.endswith(NNZS)}

    def operator(self, encoded: Any) -> Any:  # noqa: ARG002  (stated by the file)
        from rankline.serving.engines.merlin_operators import Predict  # slow import, needed by exports only

        return Predict(self.outputs)

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        return make_callable(self._session, names, self.outputs)
