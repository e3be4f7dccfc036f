"""Inputs and outputs of a model, as described by the server."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2

from rankline.serving.triton.step import CANDIDATES, CLASSES, MAX_LIST_LENGTH, names_in
from rankline.workflows.core.errors import DataError, RanklineError, RequestError
from rankline.workflows.schema.targets import score_names
from rankline.workflows.schema.tensor_names import NNZS, VALID, VALUES
from rankline.workflows.schema.tensors import Tensor


@dataclass(frozen=True, kw_only=True)
class ColumnSchema:
    """A column of a request.

    Attributes:
        name: column name.
        values: input of the values; [num_rows, longest] for lists.
        lengths: input of the list lengths; None for a column with a single input.
        mask: input that flags present values, sent only if a value is missing; None if the model has no mask.
        is_required: whether every request needs the column.
    """

    name: str
    values: Tensor
    lengths: Tensor | None = None
    mask: Tensor | None = None
    is_required: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelSchema:
    """The inputs and outputs of a model.

    Attributes:
        name: model name.
        inputs: required inputs, in the order of the config.
        outputs: outputs, in the order of the config.
        max_batch_size: maximum number of rows in one request; of candidates, if rows have several.
        optional_inputs: inputs that a request may leave out, such as masks.
        max_list_length: maximum number of list values, and of candidates, in one row; 0 if the server does not state
            it.
        classes: output → names of the classes whose probabilities it returns, for outputs with classes.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int
    optional_inputs: tuple[Tensor, ...] = ()
    max_list_length: int = 0
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: Any) -> "ModelSchema":
        """Create a schema from an `inference.ModelConfig`.

        Raises:
            RequestError: the model does not support batches, has no inputs or no outputs, or has an unsupported type.
        """
        if config.max_batch_size < 1:
            raise RequestError(
                f"model {config.name!r} does not support batches because max_batch_size is 0. Set max_batch_size to 1 "
                "or more."
            )
        if not config.input or not config.output:
            raise RequestError(f"model {config.name!r} has no inputs or no outputs, expected at least one of each.")
        candidates = names_in(_parameter(config, CANDIDATES))
        many = {*candidates, *(name + VALID for name in candidates)}
        outputs = {entry.name for entry in config.output if candidates and list(entry.dims) == [-1]}
        return cls(
            name=config.name,
            inputs=tuple(_tensor(entry, many) for entry in config.input if not entry.optional),
            outputs=tuple(_tensor(entry, outputs) for entry in config.output),
            max_batch_size=config.max_batch_size,
            optional_inputs=tuple(_tensor(entry, many, optional=True) for entry in config.input if entry.optional),
            max_list_length=int(_parameter(config, MAX_LIST_LENGTH) or 0),
            classes=json.loads(_parameter(config, CLASSES) or "{}"),
        )

    def by_output(self, scores: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Split scores by output, into arrays of shape [num_rows], or [num_rows, width] for multi-value outputs."""
        if len(self.outputs) == 1:
            return {self.outputs[0].name: scores}
        ends = np.cumsum([output.dims[0] for output in self.outputs])[:-1]
        parts = zip(self.outputs, np.split(scores, ends, axis=1), strict=True)
        return {output.name: part[:, 0] if output.is_scalar else part for output, part in parts}

    def score_columns(self, scores: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Split scores into columns named by `rankline.workflows.schema.targets.score_names`."""
        columns: dict[str, npt.NDArray[Any]] = {}
        for output, part in self.by_output(scores).items():
            classes = self.classes.get(output, ())
            for place, name in enumerate(score_names(output, classes)):
                columns[name] = part[:, place] if classes else part
        return columns

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the columns that `score_columns` returns."""
        return tuple(self.score_columns(np.empty((0, sum(abs(output.dims[0]) for output in self.outputs)))))

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Names of the columns that may have several values per row, one for each candidate."""
        return tuple(column.name for column in self.columns if column.values.is_candidates)

    @cached_property
    def columns(self) -> tuple[ColumnSchema, ...]:
        """The columns of a request in input order. `NAME__values` and `NAME__nnzs` form one column, `NAME`."""
        required = {tensor.name for tensor in self.inputs}
        inputs = {tensor.name: tensor for tensor in (*self.inputs, *self.optional_inputs)}
        lengths = {
            name: inputs[of_lengths]
            for name, tensor in inputs.items()
            if name.endswith(VALUES) and len(tensor.dims) == 1
            if (of_lengths := name.removesuffix(VALUES) + NNZS) in inputs
        }
        masks = {
            tensor.name.removesuffix(VALID): tensor
            for tensor in self.optional_inputs
            if tensor.name.endswith(VALID) and tensor.name.removesuffix(VALID) in inputs and tensor.dtype == "bool"
        }
        companions = {tensor.name for tensor in (*lengths.values(), *masks.values())}
        return tuple(
            ColumnSchema(
                name=tensor.name.removesuffix(VALUES) if tensor.name in lengths else tensor.name,
                values=tensor,
                lengths=lengths.get(tensor.name),
                mask=masks.get(tensor.name),
                is_required=tensor.name in required,
            )
            for tensor in (*self.inputs, *self.optional_inputs)
            if tensor.name not in companions
        )


def _parameter(config: Any, name: str) -> str:
    return str(config.parameters[name].string_value) if name in config.parameters else ""


def _tensor(entry: Any, candidates: Collection[str], *, optional: bool = False) -> Tensor:
    data_type = model_config_pb2.DataType.Name(entry.data_type)
    try:
        return Tensor.from_config(
            entry.name, data_type, entry.dims, optional=optional, is_candidates=entry.name in candidates
        )
    except ValueError as error:
        raise RequestError(f"{error}. Cast the tensor to a supported type in the model.") from None


def check_distinct(names: Iterable[str], place: str, error: type[RanklineError] = DataError) -> None:
    """Raise `error` if two columns of the table called `place` have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise error(f"column {name!r} appears twice in {place}, expected distinct names. Rename one of them.")
        seen.add(name)
