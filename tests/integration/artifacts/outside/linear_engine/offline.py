from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linear_engine.scoring import read, score
from rankline.workflows.schema.ragged import padded_tensors


class Model:
    def __init__(self, path: Path) -> None:
        self._weights = read(path)

    def score_served(self, columns: Mapping[str, Any]) -> Any:
        return score(self._weights, padded_tensors(columns)).reshape(-1)

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        return lambda *arrays: [score(self._weights, dict(zip(names, arrays, strict=True)))]
