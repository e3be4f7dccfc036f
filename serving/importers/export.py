"""Export a workflow and a model from outside Rankline as one Triton ensemble, with the same parity check as recipes.

The served results are compared with NVTabular and the model's own framework on sample rows.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.serving.engines import engine_for
from rankline.serving.engines.offline import OfflineModel, scores_of
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import Exportable, publish_exportable
from rankline.serving.export.parity import rows_of, transform_offline
from rankline.serving.importers import ForeignModel, open_model
from rankline.serving.importers.input_binding import (
    Encoded,
    Input,
    InputBinding,
    arrays_of,
    check_sample,
    dtypes_of,
    match,
    widths_of,
)
from rankline.serving.importers.saved_model import MultiModel
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.workflows.compiler.compile import check_operators, input_specs
from rankline.workflows.core.errors import ArtifactError, DataError, ExportError, ParityError, RanklineError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
from rankline.workflows.nvt.fitted import prune_workflow, raw_columns
from rankline.workflows.nvt.io.workflow import for_inference, load_workflow
from rankline.workflows.plan import ColumnSpec
from rankline.workflows.schema.arrow_types import holds_lists, is_text, plain_values
from rankline.workflows.schema.feature_spec import FeatureSpec
from rankline.workflows.schema.ragged import Padded, padded_tensors
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head, output_names
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES
from rankline.workflows.storage.artifacts import files_below, sha256_of

_MAX_ROWS = 4096
_MAX_NAMED = 20


def export_foreign(
    model: Path | Sequence[Path],
    sample: pa.Table,
    output: Path,
    config: ExportConfig,
    *,
    name: str,
    workflow: Path | nvt.Workflow | None = None,
    renames: Mapping[str, str] | None = None,
    missing: float | None = None,
    promote: bool = True,
    progress: Progress = SILENT,
) -> ExportedEnsemble:
    """Match a model to the workflow's columns, compare its served results with the originals, and publish an ensemble.

    Args:
        model: path of a model in any format of `rankline.serving.importers`; several TensorFlow models become one.
        sample: raw rows similar to the rows that will be scored, at least one and ideally a few thousand.
        workflow: a fitted NVTabular workflow or the directory of a saved one; None if the model takes raw columns.
        renames: column of the workflow → the model's name for it.
        missing: value that an XGBoost model treats as missing, in addition to NaN; its file does not record it.

    Returns:
        The ensemble. `assumed` in its manifest's details lists what scores depend on although no file records it.
    """
    progress.update(0, 5, "load the model")
    if not sample.num_rows:
        raise DataError("the sample has no rows. Provide rows like those that will be scored, ideally a few thousand.")
    paths = [model] if isinstance(model, Path) else list(model)
    opened = [open_model(path) for path in paths]
    taken = opened[0] if len(opened) == 1 else MultiModel(opened)
    if missing is not None:
        taken.take_as_missing(missing)
    # The types that requests can carry: numbers, strings and lists of them.
    rows = pa.table({name: plain_values(sample[name].combine_chunks()) for name in sample.column_names})
    load = _loader(workflow) if workflow is not None else partial(_identity, taken, rows, renames or {})
    source = "the sample" if workflow is None else "the workflow"
    served_workflow, offline_workflow, feeds, heads = _matched(
        taken, load, rows, renames or {}, source, config.uncompiled_operators
    )
    with TemporaryDirectory(prefix="rankline-model-") as directory:
        artifact = ConvertedModel(Path(directory) / taken.format, dtypes_of(feeds), output_names(heads))
        taken.write(feeds, heads, artifact.model_path)
        exportable = Exportable(
            workflow=served_workflow,
            offline_workflow=offline_workflow,
            model=_ReferenceScorer(taken, feeds, heads, engine_for(artifact.format).load_trained(artifact.model_path)),
            artifact=artifact,
            dtypes=artifact.dtypes,
            heads=heads,
            heldout=rows,
            made_from=_fingerprints(paths, workflow, sample),
            details={"run_id": "", "tracking_uri": "", "metrics": {}, "assumed": _assumed(taken, feeds, source)},
            columns=_columns_of(feeds),
            widths=widths_of(feeds),
            refuses_missing=True,
        )
        return publish_exportable(exportable, output, config, name=name, promote=promote, progress=progress)


def _matched(
    model: ForeignModel,
    load: Callable[[], nvt.Workflow],
    rows: pa.Table,
    renames: Mapping[str, str],
    source: str,
    uncompiled: Sequence[str],
) -> tuple[nvt.Workflow, nvt.Workflow, tuple[InputBinding, ...], tuple[Head, ...]]:
    """Match the model to the workflow's columns. Return the workflow to serve, the reference workflow, the input
    bindings and the output heads.
    """
    columns = [
        Encoded(name=name, dtype=_numpy_name(schema), is_list=bool(schema.is_list))
        for name, schema in load().output_schema.column_schemas.items()
    ]
    inputs = model.inputs or tuple(Input(name=column.name) for column in columns)
    feeds = match(inputs, columns, renames, source)
    needed = _columns_of(feeds)
    serving = prune_workflow(load, needed)
    check_operators(serving, uncompiled)
    raw = raw_columns(serving, needed)
    specs = [spec for spec in input_specs(serving) if spec.name in raw]
    _check_sample(specs, rows)
    compared_with = for_inference(serving, load)
    first = rows_of(specs, rows, _MAX_ROWS)
    frame = _transformed(compared_with, first)[needed]
    check_sample(feeds, frame)
    feeds = model.resolve_bindings(feeds, frame)
    heads = _heads(model, model.run(arrays_of(feeds, frame)), first.num_rows)
    _check_names(specs, heads)
    return serving, compared_with, feeds, heads


def _assumed(model: ForeignModel, feeds: Sequence[InputBinding], source: str) -> list[str]:
    """Return the assumptions behind the scores that neither the model nor the workflow records, one sentence each."""
    by_position = [feed for feed in feeds if feed.by_position and len(feed.columns) > 1]
    return [*model.assumed(), *(_said_of_order(feed, source) for feed in by_position)]


def _said_of_order(feed: InputBinding, source: str) -> str:
    first, numbered = ", ".join(feed.columns[:_MAX_NAMED]), feed.input.numbered
    rest = "" if len(feed.columns) <= _MAX_NAMED else f" and {len(feed.columns) - _MAX_NAMED} more"
    remedy = f", or --rename COLUMN={numbered[0]} and so on" if numbered else ""
    return (
        f"The model does not name its features, so they are matched by position, as in {source}: {first}{rest}. If "
        f"training used another order, pass the columns in that order{remedy}."
    )


def _columns_of(feeds: Sequence[InputBinding]) -> list[str]:
    return list(dict.fromkeys(name for feed in feeds for name in feed.columns))


@dataclass(frozen=True)
class ConvertedModel:
    """An imported model in its served layout, as a `ModelArtifact`."""

    model_path: Path
    dtypes: Mapping[str, str]
    outputs: tuple[str, ...]

    @property
    def format(self) -> str:
        return self.model_path.name


class _ReferenceScorer:
    """An `OfflineModel` that scores offline rows with the original framework, and served rows with the export."""

    def __init__(
        self, foreign: ForeignModel, feeds: tuple[InputBinding, ...], heads: tuple[Head, ...], adapted: OfflineModel
    ) -> None:
        self._foreign, self._feeds, self._heads, self._adapted = foreign, feeds, heads, adapted
        self._call: Callable[..., Sequence[Any]] | None = None

    def dtypes(self, spec: FeatureSpec) -> Mapping[str, str]:  # noqa: ARG002  (determined by feeds)
        return dtypes_of(self._feeds)

    def operator(self, encoded: Any) -> Any:  # noqa: ARG002  (determined by heads)
        """Return a placeholder, so that merlin-systems does not load the model again."""
        from rankline.serving.engines.merlin_operators import Predict  # takes seconds

        return Predict(output_names(self._heads))

    def score_offline(self, frame: pd.DataFrame) -> NDArray[Any]:
        made = self._foreign.run(arrays_of(self._feeds, frame))
        named = zip(output_names(self._heads), self._heads, strict=True)
        return scores_of({name: made[h.column].reshape(-1, h.width).astype(np.float32) for name, h in named})

    def score_served(self, columns: Mapping[str, NDArray[Any] | Padded]) -> NDArray[Any]:
        """Score rows as the Triton backend does, since results may depend on how a framework loads the file."""
        arrays = padded_tensors(columns)
        if self._call is None:
            self._call = self._adapted.served_call(list(arrays))
        try:
            made = self._call(*arrays.values())
        except Exception as error:  # engines raise anything
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(f"the model fails when it is called in the same way as in serving: {reason}.") from error
        return scores_of(dict(zip(sorted(output_names(self._heads)), made, strict=True)))

    def served_call(self, names: Sequence[str]) -> Callable[..., Sequence[Any]]:
        return self._adapted.served_call(names)


def _loader(workflow: Path | nvt.Workflow) -> Callable[[], nvt.Workflow]:
    """Return a function that copies the workflow on each call, since NVTabular removes columns from it in place."""
    loaded = load_workflow(workflow) if isinstance(workflow, Path) else workflow
    if not loaded.output_schema or not loaded.input_schema:
        raise ArtifactError("the workflow was saved before it was fitted. Fit it, and save it again.")
    return partial(deepcopy, loaded)


def _identity(model: ForeignModel, rows: pa.Table, renames: Mapping[str, str]) -> nvt.Workflow:
    """Create an identity workflow for the columns that match the model's named inputs, or for all numeric columns if
    its only input is an unnamed matrix.

    If an input has no column, the workflow passes on all columns, so that the error of `match` lists them.
    """
    taken = set(renames.values())
    names = {renames.get(name, name): name for name in rows.column_names if name in renames or name not in taken}
    found = [name for entry in model.inputs for name in _names(entry) if name in names]
    columns = [column for name, column in names.items() if name in found]
    if not found or not all(_is_found(entry, found) for entry in model.inputs):
        are_named = found or len(model.inputs) > 1 or any(entry.features for entry in model.inputs)
        columns = [name for name in rows.column_names if are_named or not is_text(rows[name].type)]
    if not columns:
        raise ExportError(
            f"the model requires {', '.join(map(str, model.inputs))}, but the sample has columns {rows.column_names}."
        )
    _check_missing(model, {name: rows[name] for name in columns}, renames)
    first = pa.table({name: _first_value(name, rows[name]) for name in columns})
    with quiet_nvtabular():
        return nvt.Workflow(columns >> ops.AddMetadata()).fit(nvt.Dataset(first.to_pandas()))


def _check_missing(model: ForeignModel, columns: Mapping[str, pa.ChunkedArray], renames: Mapping[str, str]) -> None:
    """Raise DataError if a value is missing for an integer input. `check_sample` reports missing lists."""
    integers = {name: entry for entry in model.inputs if _is_of_integers(entry) for name in _names(entry)}
    for name, column in columns.items():
        entry = integers.get(renames.get(name, name))
        if entry and column.null_count and not holds_lists(column.type):
            row = pc.index(column.is_null(), True).as_py() + 1
            raise DataError(
                f"column {name!r} has no value in row {row} of the sample, but the model takes {entry}, and integers "
                "cannot be missing. Drop the rows without a value, or fill them."
            )


def _is_of_integers(entry: Input) -> bool:
    return entry.dtype.startswith(("int", "uint", "bool"))


def _first_value(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return one value from which NVTabular can infer a column's type, skipping missing values and empty lists.

    Integers are converted to float64 if any is missing, so that it becomes NaN.
    """
    if column.null_count and (pa.types.is_null(column.type) or pa.types.is_integer(column.type)):
        column = column.cast(pa.float64(), safe=False)
    values = column.drop_null()
    if not holds_lists(column.type):
        return values.slice(0, 1) if len(values) else column.slice(0, 1).fill_null(pa.scalar(0).cast(column.type))
    values = values.filter(pc.greater(pc.list_value_length(values), 0))
    if not len(values):
        raise DataError(f"column {name!r} of the sample has only empty lists. Provide some rows with values.")
    return values.slice(0, 1)


def _stems(name: str) -> list[str]:
    return [name.removesuffix(part) for part in (VALUES, NNZS, OFFSETS) if name.endswith(part)]


def _names(entry: Input) -> list[str]:
    """Return every column name that would be matched to an input."""
    return [entry.name, *_stems(entry.name), *entry.features, *entry.numbered]


def _is_found(entry: Input, found: Sequence[str]) -> bool:
    of_matrix = set(entry.features or entry.numbered)
    return bool(of_matrix and of_matrix <= set(found)) or any(
        name in found for name in (entry.name, *_stems(entry.name))
    )


def _numpy_name(schema: Any) -> str:
    kind = np.dtype(schema.dtype.to_numpy)
    return "object" if kind.kind in "OSU" else str(kind)


def _check_sample(specs: Sequence[ColumnSpec], rows: pa.Table) -> None:
    names = [spec.name for spec in specs]
    if missing := [name for name in names if name not in rows.column_names]:
        raise DataError(
            f"the sample lacks the columns {missing}. The workflow was fitted on {names}, but the sample has "
            f"{rows.column_names}.{did_you_mean(rows.column_names, missing)}"
        )
    wrong = [
        f"{spec.name!r} is {rows[spec.name].type} in the sample, but the workflow was fitted on "
        f"{'lists of ' if spec.width is not None else ''}{'strings' if spec.dtype == 'object' else spec.dtype}"
        for spec in specs
        if not _fits(spec, rows[spec.name].type)
    ]
    if wrong:
        remedy = "Provide a sample with the types that the workflow was fitted on."
        if any(holds_lists(rows[spec.name].type) for spec in specs if (spec.dtype, spec.width) == ("object", None)):
            remedy = (
                "Dask turned the lists into strings when the workflow was fitted. Import "
                "rankline.workflows.nvt.dask_options before you fit it, and train again."
            )
        raise DataError(f"{'; '.join(wrong)}. {remedy}")


def _fits(spec: ColumnSpec, kind: pa.DataType) -> bool:
    if holds_lists(kind) != (spec.width is not None):
        return False
    element = kind.value_type if holds_lists(kind) else kind
    if pa.types.is_null(element):
        return True
    if spec.dtype == "object":
        return is_text(element)
    is_number = pa.types.is_integer(element) or pa.types.is_floating(element)
    return is_number and (spec.numpy_dtype.kind == "f" or not pa.types.is_floating(element))


def _transformed(workflow: nvt.Workflow, rows: pa.Table) -> pd.DataFrame:
    try:
        return transform_offline(workflow, rows)
    except RanklineError:
        raise
    except Exception as error:  # operators raise anything
        reason = " ".join(str(error).split())[:200]
        raise ParityError(
            f"NVTabular cannot transform the sample ({type(error).__name__}: {reason}), so there is no reference to "
            "compare with. Nothing was exported."
        ) from error


def _heads(model: ForeignModel, made: Mapping[str, NDArray[Any]], num_rows: int) -> tuple[Head, ...]:
    """Return a head for each numeric output. Classes without names in the model are numbered."""
    heads = []
    for name, output in made.items():
        array = np.asarray(output) if np.isscalar(output) else output
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OSU":
            continue  # class names, which some classifiers return in addition to probabilities
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise ExportError(
                f"the model's output {name!r} is {array.dtype.name}, expected integers or floats. Cast it to float32 "
                "in the model."
            )
        if array.ndim not in (1, 2) or len(array) != num_rows or not array.size:
            raise ExportError(
                f"the model's output {name!r} has the shape {list(array.shape)} for {num_rows} rows, expected "
                f"[{num_rows}] or [{num_rows}, width]. Save a model that returns one row of numbers per input row."
            )
        if array.dtype.kind in "iu" and (array != array.astype(np.float32)).any():
            raise ExportError(
                f"the model's output {name!r} is {array.dtype} with values up to {np.abs(array).max()}, but scores "
                "are float32, which cannot represent these values exactly. Remove this output from the model."
            )
        width = 1 if array.ndim == 1 else array.shape[1]
        classes = model.classes(name) or tuple(map(str, range(width)))
        is_wide = width > 1
        heads.append(Head(name, task=MULTICLASS if is_wide else REGRESSION, classes=classes if is_wide else ()))
    if not heads:
        raise ExportError(f"the model returned {list(made)}, expected at least one numeric output.")
    return tuple(heads)


def _check_names(specs: Sequence[ColumnSpec], heads: Sequence[Head]) -> None:
    taken = Counter(tensor.name for spec in specs for tensor in (*spec.tensors, *([spec.mask] if spec.mask else [])))
    scalars = {spec.name for spec in specs if spec.width is None}
    like_lists = [name.removesuffix(VALUES) + NNZS for name in scalars if name.endswith(VALUES)]
    twice = [name for name, count in taken.items() if count > 1] + [name for name in like_lists if name in scalars]
    if twice:
        raise ExportError(
            f"in requests, the columns {sorted(twice)} would be read as the values, lengths or missing values of other "
            "columns, which use these names. Rename the columns."
        )
    if twice := sorted(taken.keys() & set(output_names(heads))):
        raise ExportError(f"{twice} are both inputs of the workflow and outputs of the model. Rename the outputs.")


def _fingerprints(models: Sequence[Path], workflow: Path | nvt.Workflow | None, sample: pa.Table) -> dict[str, str]:
    """Return the fingerprints of the models and the sample, and of the workflow if it was passed as a path."""
    found = {"model" if not place else f"model_{place}": _fingerprint(path) for place, path in enumerate(models)}
    if isinstance(workflow, Path):
        found["workflow"] = _fingerprint(workflow)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as writer:
        writer.write_table(sample)
    return found | {"sample": hashlib.sha256(sink.getvalue()).hexdigest()}


def _fingerprint(path: Path) -> str:
    if path.is_file():
        return sha256_of(path)
    listed = "\n".join(f"{name} {sha256_of(file)}" for name, file in files_below(path))
    return hashlib.sha256(listed.encode()).hexdigest()
