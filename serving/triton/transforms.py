"""Transforms of raw columns at serving time: compiled plans, or workflows that run through NVTabular.

The latter is for operators without a compiled form. It has the interface of a `TransformPlan` and takes the plan's
place on disk. NVTabular converts each request to a DataFrame, which takes a few milliseconds for a single row. On disk
it consists of NVTabular's own files, which are read without executing code from them, and `columns.json`.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankline.serving.triton.step import COLUMNS_FILE
from rankline.workflows.core.errors import ArtifactError, RanklineError, RequestError
from rankline.workflows.plan import ANY_WIDTH, ColumnSpec, Transform, TransformPlan, tensor_call
from rankline.workflows.plan.columns import Lists, column_of_rows, padded_of
from rankline.workflows.plan.native_library import call_of
from rankline.workflows.plan.steps import fitting
from rankline.workflows.plan.tensors import Tensors
from rankline.workflows.schema.ragged import Padded
from rankline.workflows.schema.tensor_names import MISSING_LIST

if TYPE_CHECKING:
    import pandas as pd

    from rankline.workflows.nvt.compat import nvt

_WORKFLOW = "workflow"


@dataclass(frozen=True, kw_only=True)
class OutputColumn:
    spec: ColumnSpec

    @property
    def name(self) -> str:
        return self.spec.name


class UncompiledTransform:
    """A fitted NVTabular workflow, excluding its label, that is served without compilation."""

    def __init__(self, workflow: "nvt.Workflow", inputs: Iterable[ColumnSpec], columns: Iterable[OutputColumn]) -> None:
        self._workflow = workflow
        self.inputs, self.columns = tuple(inputs), tuple(columns)

    def run(
        self,
        inputs: Mapping[str, NDArray[Any] | pa.LargeBinaryArray | Padded],
        valid: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> dict[str, NDArray[Any] | Padded]:
        """Transform raw rows, with the same arguments and results as `TransformPlan.run`."""
        import pandas as pd

        from rankline.workflows.nvt.compat import quiet_nvtabular, without_merlin_log

        masks = valid or {}
        columns = {spec.name: _series(spec, inputs[spec.name], masks.get(spec.name)) for spec in self.inputs}
        frame = pd.DataFrame(columns)
        num_rows = len(frame)
        if any(column.isna().all() for column in columns.values()):  # NVTabular cannot encode an all-missing column
            zeros = {spec.name: _series(spec, spec.zeros(1), None) for spec in self.inputs}
            frame = pd.concat([frame, pd.DataFrame(zeros)], ignore_index=True)
        try:
            with np.errstate(all="ignore"), quiet_nvtabular(), without_merlin_log():
                made = self._workflow.transform(frame)
            if len(made) != len(frame):
                raise RequestError(f"the workflow returned {len(made)} rows for {len(frame)} input rows.")
            made = made.iloc[:num_rows]
            return {column.name: _values(column.spec, made[column.name]) for column in self.columns}
        except RanklineError:
            raise
        except Exception as error:  # operators raise anything
            reason = " ".join(str(error).split())[:200]
            raise RequestError(f"NVTabular cannot transform the rows ({type(error).__name__}: {reason}).") from error

    def save(self, directory: Path) -> None:
        from rankline.workflows.nvt.io.workflow import save_workflow

        directory.mkdir(parents=True)
        save_workflow(self._workflow, directory / _WORKFLOW)
        document = {
            "inputs": [asdict(spec) for spec in self.inputs],
            "columns": [asdict(column.spec) for column in self.columns],
        }
        (directory / COLUMNS_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def of(
        cls,
        workflow: "nvt.Workflow",
        inputs: Iterable[ColumnSpec],
        dtypes: Mapping[str, str],
        widths: Mapping[str, int],
    ) -> "UncompiledTransform":
        schemas = workflow.output_schema.column_schemas
        specs = (
            ColumnSpec(name=name, dtype=dtype, width=widths.get(name, ANY_WIDTH) if schemas[name].is_list else None)
            for name, dtype in dtypes.items()
        )
        return cls(workflow, inputs, [OutputColumn(spec=spec) for spec in specs])

    @classmethod
    def load(cls, directory: Path) -> "UncompiledTransform":
        """Load a saved transform, importing NVTabular, which takes seconds."""
        from rankline.workflows.nvt.io.workflow import load_workflow

        path = directory / COLUMNS_FILE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            inputs, columns = ([ColumnSpec(**entry) for entry in document[name]] for name in ("inputs", "columns"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path} cannot be read ({type(error).__name__}: {error}). Export again.") from None
        return cls(load_workflow(directory / _WORKFLOW), inputs, [OutputColumn(spec=spec) for spec in columns])


def _series(spec: ColumnSpec, column: Any, valid: NDArray[np.bool_] | None) -> "pd.Series[Any]":
    """Convert a raw column to the series that NVTabular would read from a table. Missing values become None or NaN, and
    lists become objects.
    """
    import pandas as pd

    if isinstance(column, Padded):
        lengths = np.where(valid, column.lengths, MISSING_LIST) if valid is not None else column.lengths
        rows = zip(column.values, lengths.tolist(), strict=True)
        lists = [
            None if n == MISSING_LIST else _texts(values[:n]) if spec.dtype == "object" else values[:n]
            for values, n in rows
        ]
        return pd.Series(lists, dtype=object)
    if spec.dtype == "object":
        texts = _texts(column.to_pylist() if isinstance(column, pa.Array) else column)
        if valid is not None:
            texts = [text if is_there else None for text, is_there in zip(texts, valid.tolist(), strict=True)]
        return pd.Series(texts, dtype=object)
    if valid is None or valid.all():
        return pd.Series(column)
    if column.dtype == np.bool_:
        return pd.Series(np.where(valid, column.astype(object), None), dtype=object)
    return pd.Series(np.where(valid, column.astype(np.float64), np.nan))


def _texts(values: Any) -> list[str | None]:
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def _values(spec: ColumnSpec, column: "pd.Series[Any]") -> NDArray[Any] | Padded:
    if spec.width is None and column.isna().any() and spec.numpy_dtype.kind != "f":
        raise RequestError(f"column {spec.name!r} has a missing value, which {spec.dtype} cannot represent.")
    made, width = column_of_rows(column, is_list=spec.width is not None), spec.width
    elements = made.elements if isinstance(made, Lists) else made
    for step in fitting(spec.name, elements.values.dtype, spec.dtype, None if width == ANY_WIDTH else width):
        made = step.run(made)
    values: NDArray[Any] | Padded = padded_of(made) if isinstance(made, Lists) else made.values
    return values


def load_call(
    directory: Path, candidates: Collection[str] = (), max_list_length: int = 0
) -> tuple[Transform, Callable[[Tensors], dict[str, NDArray[Any]]]]:
    """Load the transform from a version directory, and return it with its tensor function (see `tensor_call`)."""
    if not (directory / COLUMNS_FILE).is_file():
        plan = TransformPlan.load(directory)
        return plan, call_of(plan, directory, candidates, max_list_length)
    if sys.modules.get("pandas", ...) is None:  # kept out of processes that only run plans
        del sys.modules["pandas"]
    try:
        transform = UncompiledTransform.load(directory)
    except ImportError as error:
        raise ArtifactError(
            f"{directory} requires NVTabular, which is not installed ({error}). The container image runs only "
            "compiled workflows. Export without --uncompiled, or serve the ensemble with rankline serve."
        ) from None
    return transform, tensor_call(transform, candidates, max_list_length)
