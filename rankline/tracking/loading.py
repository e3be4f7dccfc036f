"""How MLflow loads a registered version: as what scores raw rows, in this process."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.in_process import open_ensemble


class _Scorer:
    def __init__(self, client: Client) -> None:
        self._client = client

    def predict(self, rows: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  (MLflow's)
        """Scores: [num_rows], or [num_rows, width] of several values."""
        return self._client.predict(pa.Table.from_pandas(rows, preserve_index=False))


def _load_pyfunc(path: str) -> _Scorer:
    """What `mlflow.pyfunc.load_model` gives its rows to.

    Args:
        path: one version, as a model repository holds it.
    """
    (manifest,) = Path(path).glob("*/*/manifest.json")
    return _Scorer(open_ensemble(ExportedEnsemble.load(Path(path), int(manifest.parent.name))))
