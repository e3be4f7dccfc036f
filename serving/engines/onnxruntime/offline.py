"""An ONNX model in this process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from serving.engines.onnxruntime.session import dtypes_of, make_callable, open_model, reason_of
from workflows.errors import ArtifactError
from workflows.lists import Padded, padded_tensors
from workflows.tensor_names import SCORE


class Model:
    """A `ScoringModel`; the file takes padded rows only."""

    def __init__(self, path: Path) -> None:
        try:
            self._session = open_model(path)
        except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
            raise ArtifactError(
                f"{path} is not an ONNX model that can be loaded ({reason_of(error)}). Export again."
            ) from None
        self._inputs = dtypes_of(self._session.get_inputs())

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Cast to what the file takes, so that int32 and int64 models are both fed."""
        arrays = padded_tensors(columns)
        if set(self._inputs) != set(arrays):
            raise ArtifactError(
                f"the ONNX model takes {sorted(self._inputs)}, the workflow makes {sorted(arrays)}. They do not match."
            )
        cast = [arrays[name].astype(dtype, copy=False) for name, dtype in self._inputs.items()]
        scores: NDArray[Any] = self.served_call(list(self._inputs))(*cast)[0].reshape(-1)
        return scores

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        """On the session that scores."""
        return make_callable(self._session, names, [SCORE])
