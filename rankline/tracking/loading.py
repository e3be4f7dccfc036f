"""How MLflow loads a registered version: as what scores raw rows, in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from rankline.rows import select
from serving.client import Client
from serving.ensemble import ExportedEnsemble
from serving.in_process import open_ensemble
from workflows.errors import DataError


class _Scorer:
    def __init__(self, client: Client) -> None:
        self._client = client

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  (MLflow's)
        """Scores: [num_rows], or [num_rows, width] of several values."""
        columns = self._client.schema.columns
        table = pa.Table.from_pandas(frame_of(rows), preserve_index=False)
        required, optional = ([c.name for c in columns if c.is_required is wanted] for wanted in (True, False))
        return self._client.predict(select(table, required, optional))


def frame_of(rows: Any) -> pd.DataFrame:
    """Raw rows as MLflow's callers give them: a DataFrame, records, columns, one row, `dataframe_split` or `_records`.

    Raises:
        DataError: it is something else.
    """
    if isinstance(rows, pd.DataFrame):
        return rows
    if isinstance(rows, Mapping):
        inner = next((rows[key] for key in ("dataframe_split", "dataframe_records") if [*rows] == [key]), rows)
        if isinstance(inner, Mapping) and {"columns", "data"} <= {*inner} <= {"columns", "data", "index"}:
            return pd.DataFrame(inner["data"], columns=inner["columns"])
        if not isinstance(inner, Mapping):
            rows = inner
        elif all(isinstance(value, str) or not hasattr(value, "__len__") for value in inner.values()):
            rows = [inner]  # one row
    try:
        return pd.DataFrame(rows)
    except (ValueError, TypeError) as error:
        raise DataError(f"the rows cannot be read ({error}). Give a DataFrame, records, or columns.") from None


def _load_pyfunc(path: str) -> _Scorer:
    """What `mlflow.pyfunc.load_model` gives its rows to.

    Args:
        path: one version, as a model repository holds it.
    """
    (manifest,) = Path(path).glob("*/*/manifest.json")
    return _Scorer(open_ensemble(ExportedEnsemble.load(Path(path), int(manifest.parent.name))))
