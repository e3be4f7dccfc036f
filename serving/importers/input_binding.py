"""Match a model's inputs with the columns of a workflow, by name, type and shape.

Layouts differ between frameworks. A scalar column is [rows] or [rows, 1]; a list column is flat values with offsets or
lengths, or a padded matrix; tree ensembles, and many MLPs, take one matrix of all columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.workflows.core.errors import DataError, ExportError, UnfitError
from rankline.workflows.core.formatting import did_you_mean
from rankline.workflows.plan.columns import Lists, column_of_rows
from rankline.workflows.plan.steps import fitting
from rankline.workflows.schema.ragged import Ragged
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES

COLUMN, MATRIX, PADDED = "column", "matrix", "padded"
_PARTS = {VALUES: "values", NNZS: "nnzs", OFFSETS: "offsets"}
_COUNT_BYTES = 4  # enough for the number of values in any request
_HALVES = ("float16", "bfloat16")
"""Types that only the model itself can create, since request tensors cannot have them."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input tensor of a model.

    Attributes:
        name: the model's name for the input.
        dtype: NumPy dtype name; "" if the format does not record it.
        shape: sizes, None for a variable size; None as a whole if the format does not record it.
        features: column names of a `MATRIX`, if the model records them.
        numbered: default column names of a `MATRIX`, if the framework has some.
    """

    name: str
    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    features: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = "" if self.shape is None else f"[{', '.join('?' if n is None else str(n) for n in self.shape)}]"
        return f"{self.name!r} ({self.dtype}{shape})" if self.dtype or shape else repr(self.name)


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An output column of a workflow, with the NumPy dtype name of its values (`object` for strings)."""

    name: str
    dtype: str
    is_list: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} ({'lists of ' if self.is_list else ''}{self.dtype})"


@dataclass(frozen=True, kw_only=True)
class InputBinding:
    """The mapping from a workflow's output columns to one input of a model.

    Attributes:
        kind: `COLUMN`, `MATRIX`, `PADDED`, or `VALUES`, `NNZS` or `OFFSETS` of a list.
        columns: one encoded column, or the columns of a matrix from left to right.
        dtype: NumPy dtype name of the array.
        rank: number of dimensions of the array.
        by_position: whether a matrix has the column order of the workflow or sample, because the model names no
            columns.
    """

    input: Input
    kind: str
    columns: tuple[str, ...]
    dtype: str
    rank: int
    by_position: bool = False

    @property
    def is_of_list(self) -> bool:
        return self.kind in (VALUES, NNZS, OFFSETS, PADDED)


def match(
    inputs: Sequence[Input], columns: Sequence[Encoded], renames: Mapping[str, str], source: str = "the workflow"
) -> tuple[InputBinding, ...]:
    """Match each model input to columns of the workflow, and return the bindings.

    `renames` maps columns to the model's names for them; `source` is the origin of the columns, for messages.

    Raises:
        ExportError: an input has no column, or its column does not fit; the message lists all such inputs and columns.
            Or a matched column has no name.
    """
    taken = set(renames.values())
    by_name = {renames.get(c.name, c.name): c for c in columns if c.name in renames or c.name not in taken}
    _check_renames(renames, inputs, columns, source)
    whole = _matrix(inputs, by_name, source)
    feeds = _one_by_one(inputs, columns, by_name, source) if whole is None else (whole,)
    if any("" in feed.columns for feed in feeds):
        raise ExportError(
            f"the model would take a column of {source} that has no name, but inputs are requested by name. Name the "
            "column, or remove it; DataFrame.to_csv(index=False) leaves the index out."
        )
    return feeds


def _one_by_one(
    inputs: Sequence[Input], columns: Sequence[Encoded], by_name: Mapping[str, Encoded], source: str
) -> tuple[InputBinding, ...]:
    feeds, problems, missing = [], [], []
    for entry in inputs:
        found = _feed(entry, by_name)
        if isinstance(found, InputBinding):
            feeds.append(found)
        elif found:
            problems.append(found)
        else:
            missing.append(entry)
    if missing:
        unused = sorted({column.name for column in columns} - {name for feed in feeds for name in feed.columns})
        problems.append(
            f"the model takes {', '.join(map(str, missing))}, but {source} has "
            f"{', '.join(map(str, columns)) or 'no columns'}.{_remedy([entry.name for entry in missing], unused)}"
        )
    if problems:
        raise ExportError("; ".join(problems))
    return tuple(feeds)


def _remedy(missing: Sequence[str], unused: Sequence[str]) -> str:
    return f"{did_you_mean(missing, unused)} If a column has another name, pass --rename COLUMN={missing[0]}"


def _check_renames(
    renames: Mapping[str, str], inputs: Sequence[Input], columns: Sequence[Encoded], source: str
) -> None:
    made = [column.name for column in columns]
    if wrong := [name for name in renames if name not in made]:
        raise ExportError(
            f"--rename has unknown columns {wrong}, expected columns of {source}: {made}.{did_you_mean(wrong, made)}"
        )
    if len(set(renames.values())) < len(renames):
        raise ExportError(
            f"--rename maps several columns to the same name: {dict(renames)}. Use a unique name for each."
        )
    taken = [name for entry in inputs for name in (_stem(entry.name), *entry.features, *entry.numbered)]
    if wrong := [name for name in renames.values() if name not in taken]:
        raise ExportError(
            f"--rename names unknown inputs {wrong}. The model's inputs are {taken}.{did_you_mean(wrong, taken)}"
        )


def _stem(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)


def _matrix(inputs: Sequence[Input], by_name: Mapping[str, Encoded], source: str) -> InputBinding | None:
    """Return the binding if the model's only input is a matrix of columns, or None if each input has its own column."""
    if len(inputs) != 1 or _stem(inputs[0].name) in by_name:
        return None
    entry, columns = inputs[0], by_name
    features = entry.features or (entry.numbered if set(entry.numbered) & set(by_name) else ())
    if features:
        if missing := [name for name in features if name not in by_name]:
            raise ExportError(
                f"the model requires the features {missing}, but {source} has "
                f"{[c.name for c in by_name.values()]}.{_remedy(missing, sorted(set(by_name) - set(features)))}"
            )
        columns = {name: by_name[name] for name in features}
    elif entry.shape is None:
        if len(by_name) < 2 or not all(map(_is_number, by_name.values())):
            return None
    elif len(entry.shape) != 2 or (width := entry.shape[1]) == 1:
        return None
    elif width is not None and width != len(by_name):
        raise ExportError(
            f"the model requires {entry}, a matrix with {width} columns, but {source} has {len(by_name)}: "
            f"{list(by_name)}. Remove the columns that the model was not trained on."
        )
    wrong = [str(column) for column in columns.values() if not _is_number(column)]
    if wrong:
        raise ExportError(
            f"the model requires {entry}, a single numeric matrix, but {source} has columns that do not contain one "
            f"number per row: {', '.join(wrong)}."
        )
    names = tuple(column.name for column in columns.values())
    return InputBinding(
        input=entry, kind=MATRIX, columns=names, dtype=entry.dtype or "float32", rank=2, by_position=not features
    )


def _is_number(column: Encoded) -> bool:
    return not column.is_list and np.dtype(column.dtype).kind in "iubf"


def _feed(entry: Input, by_name: Mapping[str, Encoded]) -> InputBinding | str | None:
    """Return the binding of an input, an error message if the matching column does not fit, or None if none matches."""
    part = next((part for part in _PARTS if entry.name.endswith(part) and _stem(entry.name) in by_name), None)
    column = by_name.get(entry.name if part is None else _stem(entry.name))
    if column is None:
        return None
    if part is not None and not column.is_list:
        return f"the model takes {entry}, a part of lists, but the column is {column}, one value per row"
    shape = entry.shape
    if part in (NNZS, OFFSETS):
        if entry.dtype and (np.dtype(entry.dtype).kind not in "iuf" or np.dtype(entry.dtype).itemsize < _COUNT_BYTES):
            return f"the model takes {entry}, lengths or offsets of lists, which must be int32 or int64"
        return InputBinding(
            input=entry, kind=part, columns=(column.name,), dtype=entry.dtype or "int32", rank=len(shape or (None,))
        )
    if problem := _wrong_type(entry, column):
        return problem
    # An input that declares no dtype gets int64 for integers, as PyTorch layers expect.
    dtype = entry.dtype or ("float32" if np.dtype(column.dtype).kind == "f" else "int64")
    if part == VALUES:
        is_padded = shape is not None and len(shape) == 2 and shape[1] != 1
        kind, rank = (PADDED, 2) if is_padded else (VALUES, len(shape or (None,)))
    elif column.is_list:
        if shape is not None and len(shape) != 2:
            return f"the model takes {entry}, but the column is {column}, which requires a matrix [rows, longest]"
        kind, rank = PADDED, 2
    else:
        if shape is not None and (len(shape) > 2 or (len(shape) == 2 and shape[1] not in (1, None)) or not shape):
            return f"the model takes {entry}, but the column is {column}, one value per row"
        kind, rank = COLUMN, 2 if shape is None else len(shape)
    return InputBinding(input=entry, kind=kind, columns=(column.name,), dtype=dtype, rank=rank)


def _wrong_type(entry: Input, column: Encoded) -> str | None:
    """Return the reason why a column's type does not fit an input, or None. Integer inputs do not accept floats."""
    made = np.dtype(column.dtype).kind
    taken = "f" if entry.dtype in ("", *_HALVES) else np.dtype(entry.dtype).kind
    if made in "OSU" or taken in "OSU":
        return f"the model takes {entry}, but the column is {column}: strings are not supported, encode them first"
    if taken not in "iubf":
        return f"the model takes {entry}, expected integers or floats"
    if taken in "iub" and made == "f":
        return f"the model takes {entry}, but the column is {column}: floats would lose their fractional part"
    return None


def dtypes_of(feeds: Sequence[InputBinding]) -> dict[str, str]:
    """Map each encoded column to the NumPy dtype name of its served input, with half precision widened to float32."""
    dtypes: dict[str, str] = {}
    for feed in feeds:
        if feed.kind == MATRIX:
            dtypes |= dict.fromkeys(feed.columns, feed.dtype)
        elif feed.kind not in (NNZS, OFFSETS):
            dtypes[feed.columns[0]] = feed.dtype
        else:
            dtypes.setdefault(feed.columns[0], "int64")
    return {name: "float32" if dtype in _HALVES else dtype for name, dtype in dtypes.items()}


def widths_of(feeds: Sequence[InputBinding]) -> dict[str, int]:
    """Return the list length of each encoded list column for which the model requires a fixed length."""
    return {feed.columns[0]: width for feed in feeds if feed.kind == PADDED and (width := _width(feed)) is not None}


def check_sample(feeds: Sequence[InputBinding], frame: pd.DataFrame) -> None:
    """Raise DataError if the sample has missing lists, lists that are too long for the model, or integers outside the
    range of its dtypes.
    """
    widths = widths_of(feeds)
    for feed in feeds:
        is_part = feed.kind in (NNZS, OFFSETS)
        for name in feed.columns:
            is_missing = frame[name].isna().to_numpy()
            if feed.is_of_list and is_missing.any():  # NVTabular reports missing integers
                raise DataError(
                    f"column {name!r} has a missing list in row {is_missing.argmax() + 1} of the sample, which cannot "
                    "be passed to the model. Drop the rows with missing lists, or fill the column in the "
                    "workflow with NullToEmptyList."
                )
            column = column_of_rows(frame[name], is_list=feed.is_of_list)
            made = (column.elements if isinstance(column, Lists) else column).values.dtype
            try:
                with np.errstate(all="ignore"):
                    for step in fitting(name, made, None if is_part else feed.dtype, widths.get(name)):
                        column = step.run(column)
            except UnfitError as error:
                raise DataError(
                    f"the model rejected the sample: {error} Drop the rows with these values, or save the model "
                    "with a larger dtype or width."
                ) from None


def arrays_of(feeds: Sequence[InputBinding], frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Convert encoded rows to a dict of the model's input arrays, keyed by name. Lists are objects in the rows."""
    with np.errstate(all="ignore"):  # a float64 may be too large for the model's dtype
        return {feed.input.name: _array(feed, frame) for feed in feeds}


def _array(feed: InputBinding, frame: pd.DataFrame) -> NDArray[Any]:
    if feed.kind == MATRIX:
        return np.stack([frame[name].to_numpy().astype(feed.dtype) for name in feed.columns], axis=1)
    column = frame[feed.columns[0]]
    if feed.kind == COLUMN:
        array: NDArray[Any] = column.to_numpy()
    else:
        lists = Ragged.of_rows(column)
        if feed.kind == PADDED:
            array = lists.padded(_width(feed)).values
        else:
            array = {VALUES: lists.values, NNZS: lists.lengths, OFFSETS: lists.offsets}[feed.kind]
    shape = (len(array), 1) if feed.rank == 2 and array.ndim == 1 else array.shape
    return array.astype(feed.dtype).reshape(shape)


def _width(feed: InputBinding) -> int | None:
    return feed.input.shape[1] if feed.input.shape else None


def with_rank(feeds: Sequence[InputBinding], rank: int) -> tuple[InputBinding, ...]:
    return tuple(replace(feed, rank=rank) if feed.kind == COLUMN else feed for feed in feeds)
