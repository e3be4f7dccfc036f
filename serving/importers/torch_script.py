"""Import TorchScript files written by `torch.jit.trace` or `torch.jit.script`.

A file records the names of arguments, but not their types or shapes, so columns are tried as [rows] and as [rows, 1].
An argument that is a dictionary of tensors takes all columns by name, [rows] each, as merlin-systems passes them.
"""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankline.serving.importers import ForeignModel
from rankline.serving.importers.input_binding import (
    COLUMN,
    MATRIX,
    PADDED,
    Input,
    InputBinding,
    arrays_of,
    dtypes_of,
    widths_of,
    with_rank,
)
from rankline.workflows.core.errors import ArtifactError, ExportError
from rankline.workflows.core.optional_packages import require
from rankline.workflows.schema.model_artifact import OUTPUTS, TORCH_SCRIPT
from rankline.workflows.schema.targets import Head, output_names
from rankline.workflows.schema.tensor_names import NNZS, OFFSETS, VALUES, argument_names
from rankline.workflows.torchscript.program import is_torch_script, load_torch_script

_DICTIONARY = "Dict[str, Tensor]"


def can_load(path: Path) -> bool:
    return is_torch_script(path)


class Model(ForeignModel):
    format = TORCH_SCRIPT

    def __init__(self, path: Path) -> None:
        require("torch", feature=f"serving {path}", extra="torch")
        import torch

        self._model, _ = load_torch_script(path, torch, remedy="Save the model again.")
        arguments = self._model.forward.schema.arguments[1:]
        types = {argument.name: str(argument.type) for argument in arguments}
        self._dictionary = next((name for name, kind in types.items() if kind == _DICTIONARY), None)
        if wrong := {name: kind for name, kind in types.items() if kind not in ("Tensor", _DICTIONARY)}:
            raise ArtifactError(f"forward() in {path} takes {wrong}, expected tensors or a single {_DICTIONARY}.")
        if self._dictionary and len(types) > 1:
            raise ArtifactError(f"forward() in {path} takes {types}, expected tensors or a single {_DICTIONARY}.")
        self.inputs = () if self._dictionary else tuple(Input(name=name) for name in types)
        self._assumed: tuple[str, ...] = ()

    def resolve_bindings(self, feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> tuple[InputBinding, ...]:
        """Return the first layout for which the model returns one result per row, if possible one that does not depend
        on the other rows. Columns may have shape [rows] or [rows, 1], lists may be flat or padded, and a matrix of
        integer columns may be float32 or int64.
        """
        feeds = _of_precision(feeds, self._model)
        if self._dictionary:
            tried = [with_rank(feeds, 1), with_rank(_flat(feeds), 1)]
        else:
            tried = [_lists(with_rank(feeds, rank), padded) for padded in (False, True) for rank in (1, 2)]
        if (integers := _of_integers(feeds, rows)) != feeds:
            tried.append(integers)
        more = rows.iloc[[0, *range(len(rows))]]  # in front, since a recurrent layer would ignore a last row
        fitting = [found for made in tried if (found := self._fitted(made, rows, more))]
        if fitting := [found for found in fitting if found.ignores_other_rows] or fitting:
            made = fitting[0].feeds
            self._assumed = () if self._dictionary else _assumed_rank(fitting)
            return tuple(self._of_width(feed, made, rows) for feed in made)
        try:
            self.run(arrays_of(tried[0], more))
        except ExportError as error:
            longest = {feed.columns[0]: _longest(feed, rows) for feed in feeds if feed.is_of_list}
            single = [made for made in tried if self._fits(made, rows.iloc[:1])]
            if single and not any(self._fits(made, rows.iloc[[0, 0]]) for made in single):
                raise ExportError(
                    f"{error} The model was traced with a single row and accepts only that. Trace it with several "
                    "rows, and avoid sizes that are valid for one row only, such as view(1, -1)."
                ) from None
            if longest and not single:
                raise ExportError(
                    f"{error} The longest lists in the sample have {longest} values. If the model requires lists of a "
                    "fixed width, provide a sample whose longest lists have that width."
                ) from None
            raise
        return tried[0]

    def assumed(self) -> tuple[str, ...]:
        return self._assumed

    def _of_width(self, feed: InputBinding, feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> InputBinding:
        """Fix the width of padded lists to the maximum length in the sample if the model rejects wider lists."""
        if feed.kind != PADDED:
            return feed
        fixed, wider = (
            replace(feed, input=replace(feed.input, shape=(None, _longest(feed, rows) + more))) for more in (0, 1)
        )
        return feed if self._fits(tuple(wider if other is feed else other for other in feeds), rows) else fixed

    def _fits(self, feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> bool:
        return self._scores(feeds, rows) is not None

    def _fitted(self, feeds: tuple[InputBinding, ...], rows: pd.DataFrame, more: pd.DataFrame) -> "_Fitting | None":
        """Return the scores of a layout, or None if the model does not fit both numbers of rows, with outputs of the
        same width. A wrong layout may fit a single number by coincidence, by broadcasting against weights.
        """
        scores = self._scores(feeds, rows)
        longer = None if scores is None else self._scores(feeds, more)
        if scores is None or longer is None or any(scores[name].shape[1:] != longer[name].shape[1:] for name in scores):
            return None
        return _Fitting(
            feeds=feeds,
            scores=scores,
            ignores_other_rows=all(_are_close(scores[name], longer[name][1:]) for name in scores),
        )

    def _scores(self, feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> Mapping[str, NDArray[Any]] | None:
        """Return the outputs, or None if the model fails or does not return one result per row."""
        try:
            made = self.run(arrays_of(feeds, rows))
        except ExportError:
            return None
        is_by_row = all(output.ndim in (1, 2) and len(output) == len(rows) for output in made.values())
        return made if is_by_row else None

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        import torch

        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        try:
            with torch.inference_mode():
                made = self._model(tensors) if self._dictionary else self._model(**tensors)
        except Exception as error:  # PyTorch raises RuntimeError and IndexError, a script any exception
            raise ExportError(f"the TorchScript model failed on the sample: {_line(error)}.") from None
        named = _named(made)
        if wrong := {
            name: type(value).__name__ for name, value in named.items() if not isinstance(value, torch.Tensor)
        }:
            raise ExportError(f"forward() in the TorchScript model returns {wrong}, expected tensors.")
        return {name: _array(tensor) for name, tensor in named.items()}

    def write(self, feeds: Sequence[InputBinding], heads: Sequence[Head], target: Path) -> None:
        """Trace and save a module that wraps the model. Scripted parts of the model stay scripted."""
        import torch

        example = _example(feeds)
        module = _served(self._model, feeds, heads, tuple(example), dictionary=self._dictionary)
        with quiet_torch(), torch.no_grad():
            traced = torch.jit.trace(module, tuple(example.values()), check_trace=False)  # type: ignore[no-untyped-call]
        traced.save(str(target), _extra_files={OUTPUTS: json.dumps(output_names(heads))})


def _array(tensor: Any) -> NDArray[Any]:
    """Convert an output to NumPy, as float32 if NumPy lacks its float type."""
    import torch

    has_numpy = tensor.dtype in (torch.float64, torch.float32, torch.float16) or not tensor.dtype.is_floating_point
    try:
        array: NDArray[Any] = (tensor if has_numpy else tensor.float()).numpy()
    except (TypeError, RuntimeError) as error:  # sparse or quantized
        raise ExportError(f"a TorchScript output cannot be converted to a dense array: {_line(error)}.") from None
    return array


def _longest(feed: InputBinding, rows: pd.DataFrame) -> int:
    return max(map(len, rows[feed.columns[0]]))


def _of_precision(feeds: tuple[InputBinding, ...], model: Any) -> tuple[InputBinding, ...]:
    """Return the bindings with float inputs in the precision of the model's parameters."""
    import torch

    names = {torch.float64: "float64", torch.float16: "float16"}
    floats = [tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype.is_floating_point]
    dtype = names.get(floats[0], "float32") if floats else "float32"
    return tuple(replace(feed, dtype=dtype) if feed.dtype == "float32" else feed for feed in feeds)


@dataclass(frozen=True, kw_only=True)
class _Fitting:
    """A layout of the inputs that the model accepts, with its outputs for the sample."""

    feeds: tuple[InputBinding, ...]
    scores: Mapping[str, NDArray[Any]]
    ignores_other_rows: bool


def _assumed_rank(fitting: Sequence[_Fitting]) -> tuple[str, ...]:
    """Return a note if passing columns as [rows, 1] instead would give other scores than the first layout."""
    first, *others = fitting
    columns = with_rank(first.feeds, 2)
    if all(
        _are_close(first.scores[name], other.scores[name])
        for other in others
        if other.feeds == columns
        for name in first.scores
    ):
        return ()
    return (
        "The model runs with columns of shape [rows] and of shape [rows, 1], with different scores, and does not "
        "record which it expects, so they are passed as [rows]. If training used [rows, 1], call unsqueeze(1) on "
        "the arguments in forward() and save the model again.",
    )


def _of_integers(feeds: tuple[InputBinding, ...], rows: pd.DataFrame) -> tuple[InputBinding, ...]:
    """Return the bindings with each matrix of integer columns as int64, as embeddings require."""

    def are_integers(feed: InputBinding) -> bool:
        return all(rows[name].dtype.kind in "iu" for name in feed.columns)

    return tuple(replace(f, dtype="int64") if f.kind == MATRIX and are_integers(f) else f for f in feeds)


def _are_close(scores: NDArray[Any], other: NDArray[Any]) -> bool:
    """Compare outputs [rows] or [rows, width]."""
    a, b = (array.reshape(len(array), -1).astype(np.float32) for array in (scores, other))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


def _flat(feeds: tuple[InputBinding, ...]) -> tuple[InputBinding, ...]:
    """Return the bindings with each padded list replaced by two inputs for its flat values and offsets."""
    made: list[InputBinding] = []
    for feed in feeds:
        if feed.kind != PADDED:
            made.append(feed)
            continue
        for part, dtype in ((VALUES, feed.dtype), (OFFSETS, "int32")):
            entry = replace(feed.input, name=feed.input.name + part)
            made.append(replace(feed, input=entry, kind=part, dtype=dtype, rank=1))
    return tuple(made)


def _lists(feeds: tuple[InputBinding, ...], padded: bool) -> tuple[InputBinding, ...]:
    """Return the bindings unchanged, or with the values and lengths of lists as matrices if `padded` is true."""
    if not padded:
        return feeds
    kinds = {VALUES: PADDED, NNZS: NNZS}
    return tuple(replace(feed, kind=kinds[feed.kind], rank=2) if feed.kind in kinds else feed for feed in feeds)


def _named(made: Any) -> dict[str, Any]:
    """Return the outputs as a dict. A single tensor is named `score`; elements of a tuple or list are numbered."""
    if isinstance(made, dict):
        return made
    if isinstance(made, tuple | list):
        return {f"output_{place}": tensor for place, tensor in enumerate(made)}
    return {"score": made}


def _example(feeds: Sequence[InputBinding]) -> dict[str, Any]:
    import torch

    lists, widths = {feed.columns[0] for feed in feeds if feed.is_of_list}, widths_of(feeds)
    tensors: dict[str, Any] = {}
    for name, dtype in dtypes_of(feeds).items():
        if name in lists:
            tensors[name + VALUES] = torch.zeros((2, widths.get(name, 3)), dtype=getattr(torch, dtype))
            tensors[name + NNZS] = torch.ones((2, 1), dtype=torch.int32)
        else:
            tensors[name] = torch.zeros((2, 1), dtype=getattr(torch, dtype))
    return tensors


def _served(
    model: Any, feeds: Sequence[InputBinding], heads: Sequence[Head], names: tuple[str, ...], *, dictionary: str | None
) -> Any:
    """Return a module whose `forward` takes padded columns by name and returns one tensor per head."""
    import torch

    def forward(self: Any, *tensors: Any) -> Any:
        columns = dict(zip(names, tensors, strict=True))
        inputs = {feed.input.name: _tensor(feed, columns) for feed in feeds}
        made = _named(self.model(inputs) if dictionary else self.model(*inputs.values()))
        outputs = tuple(made[head.column].reshape(-1, head.width).to(torch.float32) for head in heads)
        return outputs[0] if len(outputs) == 1 else outputs

    arguments = ("self", *argument_names(names).values())
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by tracing
    module = type("Served", (torch.nn.Module,), {"forward": forward})()
    module.model = model
    return module.eval()


def _tensor(feed: InputBinding, columns: Mapping[str, Any]) -> Any:
    import torch

    dtype = getattr(torch, feed.dtype)
    if feed.kind == MATRIX:
        return torch.cat([columns[name].to(dtype) for name in feed.columns], dim=1)
    name = feed.columns[0]
    if feed.kind == COLUMN:
        tensor = columns[name]
    else:
        padded, lengths = columns[name + VALUES], columns[name + NNZS]
        if feed.kind == PADDED:
            return padded.to(dtype)
        is_value = torch.ones_like(padded, dtype=torch.int32).cumsum(1) <= lengths
        ends = lengths.reshape(-1).cumsum(0)
        tensor = {VALUES: padded[is_value], NNZS: lengths, OFFSETS: torch.cat([ends[:1] * 0, ends])}[feed.kind]
    return tensor.to(dtype).reshape((-1, 1) if feed.rank == 2 else (-1,))


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Suppress TorchScript's deprecation warnings and those about example values that tracing turns into constants."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        yield


def _line(error: Exception) -> str:
    """Return the last line of an error message, which describes the problem; earlier lines locate it in the script."""
    return str(error).strip().rpartition("\n")[2].rstrip(".")
