"""MLflow pyfunc loader for registered versions, which then score raw rows in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from rankline.scoring.read_rows import select
from rankline.serving.client import Client, ModelSchema
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import DataError, RanklineError
from rankline.workflows.data.tabular.cast import iso_times


class _Scorer:
    def __init__(self, client: Client) -> None:
        self._client = client

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  (MLflow's signature)
        """Return scores of shape [num_rows] or [num_rows, width]."""
        schema = self._client.schema
        try:
            table = pa.Table.from_pandas(with_times(frame_of(rows), schema), preserve_index=False)
            return self._client.predict(select(table, schema))
        except RanklineError as error:  # for other exceptions, MLflow's server returns a traceback
            raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from None


def frame_of(rows: Any) -> pd.DataFrame:
    """Convert raw rows in any of MLflow's formats to a DataFrame."""
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
        raise DataError(f"the rows cannot be read ({error}). Pass a DataFrame, records, or columns.") from None


def with_times(rows: pd.DataFrame, schema: ModelSchema) -> pd.DataFrame:
    """Parse ISO 8601 strings in columns of integer timestamps, because JSON has no time type."""
    whole = [column.name for column in schema.columns if column.values.datatype == "INT64" and not column.lengths]
    for name in set(whole) & set(rows):
        if pd.api.types.infer_dtype(rows[name], skipna=True) == "string":
            texts = pa.array(rows[name].astype(object), from_pandas=True)
            times = iso_times(texts)
            if times.null_count == texts.null_count:
                rows = rows.assign(**{name: times.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)})
    return rows


def _load_pyfunc(path: str) -> _Scorer:
    """Load the version in `path`, a model repository. MLflow calls this in `mlflow.pyfunc.load_model`."""
    (manifest,) = Path(path).glob("*/*/manifest.json")
    return _Scorer(open_ensemble(ExportedEnsemble.load(Path(path), int(manifest.parent.name))))
