"""Check before publishing that an export's served results match the offline results of NVTabular and the model.

The check uses held-out rows, rows of edge cases and rows with missing values. The compiled plan must match
NVTabular (ids, lengths and bits of floats identical), and the served score must match the score through NVTabular
(within `SCORE_TOLERANCE`), except for synthetic rows that give the model NaN or numbers large enough to overflow its
sums. If a row may have several candidates, a request with several candidates must match a request with one row per
candidate. The score of a row must not depend on the other rows in its batch. Held-out rows must also be encoded as they
were when the data was prepared.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from rankline.serving.engines.offline import OfflineModel, ScoringModel
from rankline.workflows.core.errors import ExportError, ParityError, RequestError, UnfitError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular, without_merlin_log
from rankline.workflows.plan import CandidatePlan, ColumnSpec, StepCall, Transform, TransformPlan
from rankline.workflows.plan.steps import Narrow
from rankline.workflows.schema.ragged import Padded, pad
from rankline.workflows.schema.tensor_names import MISSING_LIST
from rankline.workflows.schema.tensors import relative_error

Column: TypeAlias = NDArray[Any] | Padded
Columns: TypeAlias = Mapping[str, Column]
_Batch: TypeAlias = tuple[pa.Table, Columns, pd.DataFrame]
"""Raw rows, and what the plan and NVTabular make of them."""

SCORE_TOLERANCE = 1e-5
"""Maximum difference of two scores: absolute for scores in [0, 1], relative for larger scores.

A model may sum the same numbers in a different order in each layout.
"""

MAX_ROWS = 4096
"""Number of held-out rows to compare."""

_TOO_LARGE = 1e19
"""The product of two such numbers overflows float32."""

_NUM_LACKING = 8
"""Number of rows compared with a missing value, for each column that may have missing values."""

_MAX_GROUPS = 4
"""Number of groups in which columns are first tried with missing values; a failing group is split in half.

Each try calls NVTabular, which takes time for every column of the table.
"""

_MAX_EDGE_CASE_GROUPS = 64
"""Maximum number of groups of columns; each group has its edge cases in separate rows."""

_NUM_ALONE = 32
"""Number of rows that are transformed alone and in a batch, if NVTabular serves them."""

_NUM_NEIGHBORS = 8
"""Number of rows that are scored in one batch, and each in a batch of its own copies."""
_NEIGHBOR_TOLERANCE = 0.01  # dynamic quantization has one scale per batch, which changes scores by up to 0.006

_NUM_CANDIDATES = 16
"""Number of rows that are each scored with the candidates of all of them."""

_INT64 = np.iinfo(np.int64)
_EDGE_CASE_INTEGERS = (0, -1, 1, _INT64.min, _INT64.max, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1)
_EDGE_CASE_STRINGS = ("", "a", "é", "日本", "\U0001f600", "a\0b", "\0", " a ", "long " * 60)


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """Summary of a parity check.

    Attributes:
        num_left_out: number of edge-case rows on which NVTabular itself fails, such as for a group unknown to
            `JoinGroupby`, or the model, such as for an id outside its table.
        nulls_not_compared: columns whose missing values are rejected when served, or on which NVTabular fails.
        num_candidates: number of candidates per row in the comparison of several candidates with one row per candidate;
            0 if rows have a single candidate.
    """

    num_rows: int
    num_left_out: int
    nulls_not_compared: tuple[str, ...]
    largest_score_difference: float
    num_candidates: int = 0


def check_parity(
    workflow: nvt.Workflow,
    plan: Transform,
    model: OfflineModel,
    heldout: pa.Table,
    *,
    served_model: ScoringModel | None = None,
    candidates: Collection[str] = (),
    trained_on: pa.Table | None = None,
) -> ParityReport:
    """Check that the served results match the offline results, and summarize the comparison.

    Args:
        workflow: the fitted workflow. Columns that the plan does not take, such as labels, are filled with zeros.
        plan: the same workflow without its label, compiled.
        served_model: the converted model; None if the trained model is served without conversion.
        trained_on: encoding of the first held-out rows at the time the data was prepared, if it was kept.

    Raises:
        ParityError: results differ, or a held-out row is rejected; the message names the first column and row.
        ArtifactError: the model takes other inputs.
    """
    rows, served, offline = _encoded(workflow, plan, heldout)
    # Separate: pandas converts integers to float64 if any is missing, and edge cases would lose their last bits.
    edge_cases = _rows_that_fit(plan, edge_case_rows(plan, rows))
    comparable, transformed = _transform_what_can_be(workflow, edge_cases)
    compared: list[_Batch] = [(rows, served, offline)]
    if comparable.num_rows:
        compared.append((comparable, _serve(plan, comparable), transformed))
    may_lack = [spec.name for spec in plan.inputs if spec.width is not None or spec.has_mask]
    without_values, not_compared = _transform_without_values(workflow, plan, rows, may_lack)
    compared += without_values
    given, *made_up = compared
    differences = [_compare(model, served_model or model, *given)]
    _compare_neighbors(served_model or model, plan, rows)
    if trained_on is not None:
        _compare_with_training(rows, served, trained_on)
    num_refused = 0
    for batch in made_up:
        runnable = _runnable(model, *batch)
        num_refused += batch[0].num_rows - runnable[0].num_rows
        if runnable[0].num_rows:
            differences.append(_compare(model, served_model or model, *runnable, are_made_up=True))
    few = rows.slice(0, _NUM_CANDIDATES if candidates else 0)
    if few.num_rows:
        differences.append(_compare_candidates(served_model or model, plan, candidates, few))
    return ParityReport(
        num_rows=sum(batch.num_rows for batch, _, _ in compared) - num_refused,
        num_left_out=edge_cases.num_rows - comparable.num_rows + num_refused,
        nulls_not_compared=tuple(name for name in may_lack if name in not_compared),
        largest_score_difference=max(differences),
        num_candidates=few.num_rows,
    )


def check_encoding(workflow: nvt.Workflow, plan: Transform, heldout: pa.Table) -> None:
    """Raise ParityError if the plan and NVTabular encode held-out rows differently."""
    rows, served, offline = _encoded(workflow, plan, heldout)
    for name, column in served.items():
        _compare_column(name, column, offline[name], rows)


def _encoded(workflow: nvt.Workflow, plan: Transform, heldout: pa.Table) -> _Batch:
    rows = rows_of(plan.inputs, heldout, MAX_ROWS)
    served = _serve(plan, rows)
    try:
        return rows, served, transform_offline(workflow, rows)
    except Exception as error:  # operators raise anything
        raise ParityError(
            f"NVTabular failed on the held-out rows ({type(error).__name__}: {error}), so there is no reference to "
            "compare with. Nothing was exported."
        ) from error


def check_batch_independence(plan: Transform, heldout: pa.Table) -> float:
    """Raise ParityError if transforming a row depends on the other rows in its batch, since serving batches requests.

    Operators that run through NVTabular may look at neighboring rows. Return a row's median latency in milliseconds.
    """
    rows = rows_of(plan.inputs, heldout, _NUM_ALONE)
    together, times = _serve(plan, rows), list[float]()
    for number in range(rows.num_rows):
        row = rows.slice(number, 1)
        begin = time.perf_counter()
        alone = _serve(plan, row)
        times.append(1000 * (time.perf_counter() - begin))
        for name, column in alone.items():
            same = _at(together[name], slice(number, number + 1))
            own, among = (c.ragged().values if isinstance(c, Padded) else c for c in (column, same))
            if len(own) != len(among) or not _identical(own, among).all():
                raise ParityError(
                    f"column {name!r} differs: the workflow returns {own} for the row {_row(rows, number)} alone but "
                    f"{among} for the same row in a batch, so the result depends on the other rows in the batch. "
                    "Nothing was exported."
                )
    return statistics.median(times)


def _at(column: Column, rows: slice | NDArray[np.bool_]) -> Column:
    return Padded(column.values[rows], column.lengths[rows]) if isinstance(column, Padded) else column[rows]


def rows_of(inputs: Sequence[ColumnSpec], heldout: pa.Table, max_rows: int) -> pa.Table:
    few = heldout.slice(0, max_rows)  # once, since slicing takes time per column
    return pa.table({spec.name: _heldout_column(spec, few) for spec in inputs})


def edge_case_rows(plan: Transform, heldout: pa.Table) -> pa.Table:
    """Return one row per edge-case value of each column, with held-out values in the other columns.

    No value is missing, except for NaN.
    """
    taken = _narrowed(plan)
    edge_cases = {spec.name: _edge_case_values(spec, taken.get(spec.name, spec.dtype)) for spec in plan.inputs}
    present = {name: heldout[name].combine_chunks().drop_null() for name in edge_cases}
    usual = {name: present[name] if len(present[name]) else values for name, values in edge_cases.items()}
    groups = _groups(list(edge_cases), _MAX_EDGE_CASE_GROUPS)
    counts = [max(len(edge_cases[name]) for name in names) for names in groups]
    positions = np.concatenate([np.arange(count) for count in [0, *counts]])
    columns = {}
    for names, end, count in zip(groups, np.cumsum(counts).tolist(), counts, strict=True):
        for name in names:
            column, begin = usual[name].take(pa.array(positions % max(len(usual[name]), 1))), end - count
            rest = column.slice(begin + len(edge_cases[name]))
            columns[name] = pa.concat_arrays([column.slice(0, begin), edge_cases[name], rest])
    return pa.table(columns)


def _groups(names: Sequence[str], most: int) -> list[Sequence[str]]:
    """Split names into nonempty groups of similar size, no more than `most`."""
    bounds = np.linspace(0, len(names), min(most, len(names)) + 1).astype(int).tolist()
    return [names[begin:end] for begin, end in itertools.pairwise(bounds)]


def _transform_without_values(
    workflow: nvt.Workflow, plan: Transform, heldout: pa.Table, names: Sequence[str]
) -> tuple[list[_Batch], set[str]]:
    batches, not_compared = list[_Batch](), set[str]()
    waiting = _groups(names, _MAX_GROUPS)
    while waiting:
        group = waiting.pop()
        present, lacking = _rows_with_and_without(group, heldout)
        both = _transform_lacking(workflow, plan, present, lacking)
        # In one batch, NVTabular gets the integers of all these columns as float64, whose hashes may differ.
        if both is not None and (len(group) == 1 or _all_identical(*both)):
            batches.append((lacking, *both))
        elif len(group) > 1:
            waiting += _groups(group, 2)
        else:
            not_compared |= {*group}
    return batches, not_compared


def _rows_with_and_without(names: Sequence[str], heldout: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return held-out rows that have a value in one of the named columns, and the same rows with that value removed."""
    places = [np.flatnonzero(heldout[name].is_valid())[:_NUM_LACKING] for name in names]
    present = heldout.take(pa.array(np.concatenate(places)))
    lacking, ends = present, np.cumsum([len(rows) for rows in places]).tolist()
    for name, rows, end in zip(names, places, ends, strict=True):
        column = present[name].combine_chunks()
        nothing = pa.nulls(len(rows), column.type)
        changed = pa.concat_arrays([column.slice(0, end - len(rows)), nothing, column.slice(end)])
        lacking = lacking.set_column(lacking.schema.get_field_index(name), name, changed)
    return present, lacking


def _transform_lacking(
    workflow: nvt.Workflow, plan: Transform, present: pa.Table, lacking: pa.Table
) -> tuple[dict[str, Column], pd.DataFrame] | None:
    """Transform `lacking`, rows with missing values, by the plan and NVTabular. Return None if either rejects them."""
    try:
        served = plan.run(*plan_inputs(plan, lacking))
    except RequestError:
        return None
    offline = _attempt(workflow, pa.concat_tables([lacking, present]))
    return None if offline is None else (served, offline.iloc[: lacking.num_rows])


def plan_inputs(plan: Transform, rows: pa.Table) -> tuple[dict[str, Column], dict[str, NDArray[np.bool_]]]:
    """Return the arguments of `TransformPlan.run`: the inputs, and the masks of columns with missing values."""
    inputs: dict[str, Column] = {}
    valid = {}
    for spec in plan.inputs:
        column = rows[spec.name].combine_chunks()
        if column.null_count and spec.has_mask:
            valid[spec.name] = column.is_valid().to_numpy(zero_copy_only=False)
        inputs[spec.name] = _values(spec, column) if spec.width is None else _padded(spec, column)
    return inputs, valid


def _heldout_column(spec: ColumnSpec, heldout: pa.Table) -> pa.ChunkedArray:
    try:
        # NVTabular treats integers as floats if any was missing in training, even if they lose their last bits.
        return heldout[spec.name].cast(_arrow_type(spec), safe=spec.numpy_dtype.kind != "f")
    except (KeyError, pa.ArrowException) as error:
        raise ParityError(
            f"column {spec.name!r} is missing from the held-out rows or cannot be converted to {spec.dtype} "
            f"({error}). Prepare the data again."
        ) from None


def _serve(plan: Transform, rows: pa.Table) -> dict[str, Column]:
    inputs, valid = plan_inputs(plan, rows)
    try:
        return plan.run(inputs, valid)
    except RequestError as error:
        raise ParityError(
            f"the held-out rows, or edge cases derived from these rows, could not be served: {error} Nothing was "
            "exported."
        ) from None


def _compare(
    model: OfflineModel,
    served_model: ScoringModel,
    rows: pa.Table,
    served: Columns,
    offline: pd.DataFrame,
    *,
    are_made_up: bool = False,
) -> float:
    """Check that the plan and NVTabular encode a batch identically, and return the largest score difference.

    How a model handles NaN and overflowing sums depends on engine and processor: with AVX-512, TensorFlow's ReLU turns
    NaN into 0. Synthetic rows are therefore not rejected for such differences.
    """
    offline = offline[list(served)]
    for name, column in served.items():
        _compare_column(name, column, offline[name], rows)
    expected = model.score_offline(offline)
    actual = served_model.score_served(served).reshape(expected.shape)
    if are_made_up:
        is_open = out_of_range(served).reshape(-1, *(1,) * (actual.ndim - 1)) | np.isnan(expected) | np.isnan(actual)
        actual = np.where(is_open, expected, actual)
    worst, difference = _worst(expected, actual)
    if not difference <= SCORE_TOLERANCE:  # also true for NaN
        why = (
            " The model computes with NaN, which a ReLU turns into 0 on some processors: fill missing numbers in the "
            "workflow, and divide by no zero in the model."
        )
        raise ParityError(
            f"the score of the row {_row(rows, worst)} is {expected[worst].tolist()} offline but "
            f"{actual[worst].tolist()} when served. The scores may differ by at most {SCORE_TOLERANCE}."
            f"{why * bool(np.isnan(difference))} Nothing was exported."
        )
    return difference


def _compare_with_training(rows: pa.Table, served: Columns, trained_on: pa.Table) -> None:
    """Raise ParityError if the encoding has changed since `prepare`. It can change because a saved workflow does not
    include its operators' code.
    """
    before = trained_on.slice(0, rows.num_rows).to_pandas()
    for name in served:
        if (row := _first_difference(served[name], before[name], _close)) is not None:
            raise ParityError(
                f"column {name!r} differs: the value for the row {_row(rows, row)} was {before[name].iloc[row]} when "
                f"the data was prepared, but is {_value(served[name], row)} now, so the code of an operator has "
                "changed. Prepare and train again. Nothing was exported."
            )


def out_of_range(columns: Columns) -> NDArray[np.bool_]:
    """Flag the rows with NaN or numbers too large for a model. Return a single False if no column has floats."""
    arrays = (column.values if isinstance(column, Padded) else column for column in columns.values())
    numbers = (values for values in arrays if values.dtype.kind == "f")
    found = [~(np.abs(values) < _TOO_LARGE).all(axis=tuple(range(1, values.ndim))) for values in numbers]
    return np.logical_or.reduce(found) if found else np.zeros(1, np.bool_)


def _runnable(model: OfflineModel, rows: pa.Table, served: Columns, offline: pd.DataFrame) -> _Batch:
    """Select the rows of a batch that an imported model can run, such as rows whose ids are in its tables."""

    def runs(start: int, end: int) -> bool:
        try:
            model.score_offline(offline[list(served)].iloc[start:end])
        except ExportError:
            return False
        return True

    flags = rows_where(runs, rows.num_rows)
    if flags.all():
        return rows, served, offline
    kept = {name: _at(column, flags) for name, column in served.items()}
    return rows.filter(pa.array(flags)), kept, offline[flags]


def _rows_that_fit(plan: Transform, rows: pa.Table) -> pa.Table:
    """Drop rows with a number or list that is too large for the model's inputs, since such requests are rejected."""

    def fits(start: int, end: int) -> bool:
        try:
            plan.run(*plan_inputs(plan, rows.slice(start, end - start)))
        except RequestError as error:
            return not isinstance(error, UnfitError)  # others are reported when they are served
        return True

    return rows.filter(pa.array(rows_where(fits, rows.num_rows)))


def rows_where(holds: Callable[[int, int], bool], num_rows: int) -> NDArray[np.bool_]:
    """Flag the rows for which `holds` is true, by bisection. `holds` must be true for a slice exactly when it is true
    for each of its rows.
    """
    flags = np.zeros(num_rows, np.bool_)
    waiting = [(0, num_rows)] if num_rows else []
    while waiting:
        start, end = waiting.pop()
        if holds(start, end):
            flags[start:end] = True
        elif end - start > 1:
            middle = (start + end) // 2
            waiting += [(start, middle), (middle, end)]
    return flags


def _worst(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[int, float]:
    with np.errstate(invalid="ignore"):  # infinite scores
        difference = np.where(_identical(actual, expected), 0.0, relative_error(actual, expected))
    if difference.ndim > 1:
        difference = difference.max(axis=1)
    worst = int(np.argmax(difference))
    return worst, float(difference[worst])


def _compare_neighbors(model: ScoringModel, plan: Transform, rows: pa.Table) -> None:
    """Raise ParityError if a row's score depends on the other rows in its batch, which may belong to other requests.

    A batch of copies of the row is the reference, since a model may round differently for another number of rows.
    """
    rows = rows.take(pa.array(np.linspace(0, rows.num_rows - 1, _NUM_NEIGHBORS, dtype=np.int64)))
    copies = [rows.take(pa.array(np.full(_NUM_NEIGHBORS, number))) for number in range(_NUM_NEIGHBORS)]
    actual, *alone = scored = [model.score_served(_serve(plan, batch)) for batch in (rows, *copies)]
    if wrong := [len(scores) for scores in scored if len(scores) != _NUM_NEIGHBORS]:
        raise ParityError(
            f"the model returns {wrong[0]} scores for a batch of {_NUM_NEIGHBORS} rows, expected one per row. Save "
            "a model that computes nothing across the batch. Nothing was exported."
        )
    expected = np.stack([scores[number] for number, scores in enumerate(alone)])
    worst, difference = _worst(expected, actual)
    if not difference <= _NEIGHBOR_TOLERANCE:
        raise ParityError(
            f"the score of the row {_row(rows, worst)} is {expected[worst].tolist()} in a batch of its own copies but "
            f"{actual[worst].tolist()} in a batch with other rows, so it depends on the other rows. Serving batches "
            "rows of different requests, so a score must depend on its own row only. Call model.eval() before tracing "
            "or saving the model, mask the padding of lists, and compute nothing across the batch. Nothing was "
            "exported."
        )


def _compare_candidates(model: ScoringModel, plan: Transform, candidates: Collection[str], rows: pa.Table) -> float:
    """Score rows with several candidates each, and each candidate in a row of its own. Return the largest difference
    between the scores.
    """
    count = rows.num_rows
    inputs, valid = plan_inputs(plan, rows)

    def several(name: str, column: Any) -> Any:
        return np.tile(column, (count, 1)) if name in candidates else column

    def alone(name: str, column: Any) -> Any:
        if isinstance(column, Padded):
            return Padded(column.values.repeat(count, axis=0), column.lengths.repeat(count))
        return np.tile(column, count) if name in candidates else column.repeat(count)

    request, rows_alone = (
        [{name: shape(name, column) for name, column in columns.items()} for columns in (inputs, valid)]
        for shape in (several, alone)
    )
    expected = model.score_served(plan.run(*rows_alone))
    actual = model.score_served(CandidatePlan.of(plan, candidates).run(*request))
    if actual.size != expected.size:
        raise ParityError(
            f"the model returns {actual.size} scores for {count} rows with {count} candidates each, expected "
            f"{expected.size}. The model must return one score per candidate. Nothing was exported."
        )
    actual = actual.reshape(expected.shape)
    worst, difference = _worst(expected, actual)
    if not difference <= SCORE_TOLERANCE:
        row, candidate = (_row(rows, number) for number in divmod(worst, count))
        row |= {name: value for name, value in candidate.items() if name in candidates}
        raise ParityError(
            f"the score of the row {row} is {expected[worst].tolist()} for the candidate alone but "
            f"{actual[worst].tolist()} for the same candidate in a request with other candidates. The scores may "
            f"differ by at most {SCORE_TOLERANCE}. Nothing was exported."
        )
    return difference


def transform_offline(workflow: nvt.Workflow, rows: pa.Table) -> pd.DataFrame:
    """Transform raw rows through NVTabular, with the dtypes that `prepare` would write.

    pandas stores numbers as float64 and booleans as objects if any is missing; the files have the dtype of the schema.
    """
    frame = rows.to_pandas()
    for name, schema in workflow.input_schema.column_schemas.items():
        if name not in frame and schema.is_list:
            # Empty ones, as their type is unknown if the workflow was fitted to rows that begin with an empty list.
            frame[name] = [[] for _ in range(len(frame))]
        elif name not in frame:
            frame[name] = np.zeros(len(frame), dtype=schema.dtype.to_numpy)
    dtypes = {name: schema.dtype.to_numpy for name, schema in workflow.output_schema.column_schemas.items()}
    with quiet_nvtabular(), without_merlin_log(), np.errstate(all="ignore"):
        made: pd.DataFrame = workflow.transform(frame)
        return made.astype({name: dtypes[name] for name in made if _is_widened(made[name], dtypes[name])})


def _is_widened(column: "pd.Series[Any]", dtype: np.dtype[Any]) -> bool:
    is_boolean = dtype == np.bool_ and column.dtype == object and bool(column.notna().all())
    return is_boolean or column.dtype == np.float64


def _transform_what_can_be(workflow: nvt.Workflow, rows: pa.Table) -> tuple[pa.Table, pd.DataFrame]:
    """Return the rows that NVTabular can transform, and its output for them."""
    if (whole := _attempt(workflow, rows)) is not None:
        return rows, whole
    flags = rows_where(lambda start, end: _attempt(workflow, rows.slice(start, end - start)) is not None, rows.num_rows)
    rows = rows.filter(pa.array(flags))
    return rows, transform_offline(workflow, rows) if rows.num_rows else pd.DataFrame()


def _attempt(workflow: nvt.Workflow, rows: pa.Table) -> pd.DataFrame | None:
    """Transform rows through NVTabular, or return None if an operator fails."""
    try:
        return transform_offline(workflow, rows)
    except Exception:  # operators raise anything
        return None


def _arrow_type(spec: ColumnSpec) -> pa.DataType:
    element = pa.large_string() if spec.dtype == "object" else pa.from_numpy_dtype(spec.numpy_dtype)
    return element if spec.width is None else pa.list_(element)


def _narrowed(plan: Transform) -> dict[str, str]:
    """Map each raw integer column that the plan narrows to the name of the narrower NumPy dtype."""
    calls = plan.steps if isinstance(plan, TransformPlan) else ()
    steps = ((call.step, call.inputs[0]) for call in calls if isinstance(call, StepCall))
    return {column: step.dtype for step, column in steps if isinstance(step, Narrow) and isinstance(column, str)}


def _edge_case_values(spec: ColumnSpec, taken: str) -> pa.Array:
    """Return edge-case values of a column's type, for lists in three forms: empty, one value each, and all values.

    `taken` is the NumPy dtype name in which the model takes integers of the column.
    """
    kind, values = spec.numpy_dtype.kind, list[Any]()
    if kind == "O":
        values = list(_EDGE_CASE_STRINGS)
    elif kind == "b":
        values = [False, True]
    elif kind == "f":
        limits = np.finfo(spec.numpy_dtype)
        values = [0.0, -0.0, 1.5, -1.0, np.nan, np.inf, -np.inf]
        values += [float(limits.max), float(limits.min), float(limits.tiny)]
    else:
        bounds = np.iinfo(spec.numpy_dtype)
        given = [value for value in _EDGE_CASE_INTEGERS if bounds.min <= value <= bounds.max]
        numbers = np.array(given, spec.numpy_dtype)
        values = numbers[numbers.astype(taken) == numbers].tolist()
    if spec.width is not None:
        values = [[], *([value] for value in values), values]
    return pa.array(values, _arrow_type(spec))


def _values(spec: ColumnSpec, array: pa.Array) -> NDArray[Any]:
    """Convert a column to NumPy, with missing strings as None, floats as NaN, and other values as zero."""
    if spec.dtype == "object":
        array = array.cast(pa.large_binary())
    elif spec.numpy_dtype.kind != "f" and array.null_count:
        array = array.fill_null(spec.numpy_dtype.type(0).item())
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def _padded(spec: ColumnSpec, array: pa.Array) -> Padded:
    elements = array.flatten()
    if elements.null_count and spec.numpy_dtype.kind in "iub":
        raise ParityError(
            f"column {spec.name!r} has lists of {spec.dtype} with missing values, which a request cannot represent. "
            "Fill the missing values in the data, or convert the column to float64. Nothing was exported."
        )
    lengths = array.value_lengths().fill_null(MISSING_LIST).to_numpy(zero_copy_only=False).astype(np.int32)
    width = max(int(lengths.max(initial=0)), 1)
    values = _values(spec, elements).astype(spec.numpy_dtype)  # copied, since PyTorch warns of read-only arrays
    return Padded(pad(values, lengths, width), lengths)


def _compare_column(name: str, served: Column, offline: "pd.Series[Any]", rows: pa.Table) -> None:
    if (row := _first_difference(served, offline, _identical)) is not None:
        raise ParityError(
            f"column {name!r} differs: the row {_row(rows, row)} yields {offline.iloc[row]} offline but "
            f"{_value(served, row)} when served. Nothing was exported."
        )


def _all_identical(served: Columns, offline: pd.DataFrame) -> bool:
    return all(_first_difference(column, offline[name], _identical) is None for name, column in served.items())


def _first_difference(
    served: Column,
    offline: "pd.Series[Any]",
    compare: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]],
) -> int | None:
    if isinstance(served, Padded):
        lists = served.ragged()
        with np.errstate(all="ignore"):
            same = [
                len(a) == len(b) and bool(compare(a, np.asarray(b, dtype=a.dtype)).all())
                for a, b in zip(np.split(lists.values, lists.offsets[1:-1]), offline, strict=True)
            ]
    else:
        with np.errstate(all="ignore"):  # the model's dtype may be too small for a number
            values = offline.to_numpy()
            are_whole = values.dtype.kind in "iu" and served.dtype.kind in "iu"  # a cast could wrap around
            same = compare(served, values if are_whole else values.astype(served.dtype)).tolist()
    return None if all(same) else same.index(False)


def _value(served: Column, row: int) -> Any:
    return served.values[row, : served.lengths[row]] if isinstance(served, Padded) else served[row]


def _identical(served: NDArray[Any], offline: NDArray[Any]) -> NDArray[np.bool_]:
    """Compare values elementwise. Floats are compared bitwise, but any two NaNs are equal."""
    same: NDArray[np.bool_] = served == offline
    if served.dtype.kind == "f":
        same &= np.signbit(served) == np.signbit(offline)
        same |= np.isnan(served) & np.isnan(offline)
    return same


def _close(served: NDArray[Any], before: NDArray[Any]) -> NDArray[np.bool_]:
    """Compare values elementwise, with a tolerance for floats because logarithms differ between processors."""
    same = _identical(served, before)
    return same | np.isclose(served, before, rtol=1e-5, atol=1e-6) if served.dtype.kind == "f" else same


def _row(rows: pa.Table, index: int) -> dict[str, Any]:
    return {name: rows[name][index].as_py() for name in rows.column_names}
