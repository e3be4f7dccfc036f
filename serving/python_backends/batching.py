"""Base class of Rankline's Triton backends, which run waiting requests as one batch and split the results.

Triton loads only `model.py` from a backend folder. This module, like `rankline.workflows.plan` for `nvtabular`, is
found through the Python path: the embedded server sets it, a container needs Rankline's directory in PYTHONPATH.

Parameters in `config.pbtxt`, for models that take several candidates per row:

    CANDIDATES        comma-separated inputs with one value per candidate; outputs of dims [-1] that are not lists also
                      have one value per candidate
    MAX_LIST_LENGTH   maximum number of candidates in a row; default 0: no limit
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils

from rankline.serving.python_backends.model_arguments import Array, Run, ServedModel, whole_number
from rankline.serving.python_backends.requests import Candidates, is_client_error
from rankline.serving.triton.step import CANDIDATES, MANIFEST_PARAMETER, MAX_LIST_LENGTH, PLAN, check_step, names_in
from rankline.workflows.core.errors import ArtifactError, RanklineError
from rankline.workflows.core.machine import keep_freed_memory
from rankline.workflows.schema.tensor_names import NNZS, VALID, VALUES
from rankline.workflows.schema.tensors import Tensor, fill_value

Batch = Sequence[Array | None]
"""One array per input of the config; None for an optional input that a request leaves out."""

# Frameworks keep the memory of the largest run, so warm-up does not use larger batches.
WARM_UP_ROWS = (1, 16, 256, 4096, 16384)

# One request with a long list must not widen all others that wait with it.
_MAX_PADDING = 4  # padded cells per value
_FEW_CELLS = 1 << 16


class BatchingModel(ABC):
    """Base class of the models that Triton's Python backend loads. Each instance is an object in its own process."""

    FRAMEWORK: ClassVar[str]
    """Name of the framework, for messages."""

    @abstractmethod
    def load(self, model: ServedModel) -> Run:
        """Load the model. Raise TritonModelException if it is missing, damaged or does not match the config.

        Returns:
            A function from one array per input, None for an omitted optional input, to one array per output, in the
                order of the config.
        """

    def load_step(self, model: ServedModel) -> Run:
        """Load the model, preceded by the workflow at `<version>/plan` if the step has one. See `load` for errors."""
        if not (model.version / PLAN).is_dir():
            return self.load(model)
        from rankline.serving.python_backends.plan_step import load_behind_workflow  # a model alone needs no Arrow

        self._runs = "the ensemble"
        return load_behind_workflow(model, self.load)

    def explain(self, error: Exception) -> str:
        """Return the most informative line of a framework's error."""
        return str(error).partition("\n")[0]

    def initialize(self, args: Mapping[str, str]) -> None:
        model = ServedModel.from_args(args)
        if manifest := model.parameters.get(MANIFEST_PARAMETER):
            try:
                check_step(model.version.parent, manifest)
            except ArtifactError as error:
                raise pb_utils.TritonModelException(str(error)) from error
        self._inputs, self._outputs = model.inputs, model.outputs
        self._lists = _lists_among([tensor.name for tensor in model.inputs])
        self._candidates = _candidates_of(model)
        keep_freed_memory()
        self._runs = self.FRAMEWORK
        self._run = self.load_step(model)
        self._warm_up(model.max_batch_size)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests, joining them into batches for the model. A failed request does not affect the others."""
        batches = [self._read(request) for request in requests]
        if self._candidates is None or len(batches) == 1:
            return self._together(batches)
        responses: dict[int, Any] = {}
        for group in self._candidates.groups(batches):
            responses |= dict(zip(group, self._together([batches[number] for number in group]), strict=True))
        return [responses[number] for number in range(len(batches))]

    def _together(self, batches: Sequence[Batch]) -> list[Any]:
        if len(batches) > 1:
            try:
                for batch in batches:
                    self._check_lengths(batch)
                aligned = batches if self._candidates is None else self._candidates.aligned(batches)
                return self._split(self._run(*(join(arrays) for arrays in zip(*aligned, strict=True))), batches)
            except Exception as error:
                pb_utils.Logger.log_verbose(f"{len(batches)} requests could not be joined, running each alone: {error}")
        return [self._run_alone(batch) for batch in batches]

    def _check_lengths(self, batch: Batch) -> None:
        """Raise ValueError if the length of a list exceeds the number of values in its row.

        After joining with a wider request, the missing values would be read from that request's padding.
        """
        for values_at, lengths_at in self._lists:
            values, lengths = batch[values_at], batch[lengths_at]
            if values is not None and lengths is not None and lengths.max(initial=0) > values.shape[1]:
                name = self._inputs[lengths_at].name
                raise ValueError(
                    f"{name} has list lengths greater than {values.shape[1]}, the number of values in each row"
                )

    def _run_alone(self, batch: Batch) -> Any:
        try:
            if self._candidates is None:
                return self._response(self._run(*batch))
            shape = self._candidates.shape_of(batch)
            results = self._run(*batch)
            self._candidates.check_results(results, shape)
            return self._response(results)
        except Exception as error:
            message = f"{self._runs} could not run the request: {self._reason(error)}"
            errors = pb_utils.TritonError
            status = errors.INVALID_ARG if is_client_error(error) else errors.INTERNAL
            return pb_utils.InferenceResponse([], errors(message, status))

    def _reason(self, error: Exception) -> str:
        return str(error).partition("\n")[0] if isinstance(error, RanklineError) else self.explain(error)

    def _split(self, results: Sequence[Array], batches: Sequence[Batch]) -> list[Any]:
        *bounds, num_rows = np.cumsum([next(len(array) for array in batch if array is not None) for batch in batches])
        if any(len(result) != num_rows for result in results):
            raise ValueError(f"the outputs have {[len(result) for result in results]} rows for {num_rows} input rows")
        split: list[Sequence[Array]] = list(zip(*(np.split(result, bounds) for result in results), strict=True))
        if self._candidates is not None:
            shapes = [self._candidates.shape_of(batch) for batch in batches]
            self._candidates.check_results(results, (int(num_rows), max(count for _, count in shapes)))
            split = [self._candidates.own(parts, count) for parts, (_, count) in zip(split, shapes, strict=True)]
        return [self._response(parts) for parts in split]

    def _response(self, results: Sequence[Array]) -> Any:
        tensors = zip(self._outputs, results, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(tensor.name, result) for tensor, result in tensors])

    def _read(self, request: Any) -> Batch:
        given = {tensor.name(): tensor for tensor in request.inputs()}
        return [given[tensor.name].as_numpy() if tensor.name in given else None for tensor in self._inputs]

    def _warm_up(self, max_batch_size: int) -> None:
        """Run the model once per warm-up batch size, so that no request pays for optimization or first allocations."""
        for num_rows in sorted({min(rows, max(max_batch_size, 1)) for rows in WARM_UP_ROWS}):
            try:
                self._run(*(None if is_mask(tensor) else tensor.zeros(num_rows) for tensor in self._inputs))
            except Exception as error:  # a valid model may reject rows of zeros
                pb_utils.Logger.log_warn(f"warm-up with {num_rows} rows of zeros failed: {error}")
                return


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor is the validity mask of a column, which requests omit if no value is missing."""
    return tensor.optional and tensor.dtype == "bool" and tensor.name.endswith(VALID)


def join(arrays: Batch) -> Array | None:
    """Concatenate the arrays that several requests contain for one tensor, or return None if no request contains it.

    Rows of 2-D tensors are padded with zeros to the longest.

    Raises:
        ValueError: only some requests have the tensor, although Triton does not join such requests, or the row lengths
            differ so much that the result would be mostly padding.
    """
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    if len(present) < len(arrays):
        raise ValueError("some requests omit an optional input that others include")
    return _concatenated(present)


def _concatenated(arrays: Sequence[Array]) -> Array:
    if arrays[0].ndim != 2 or len({array.shape[1] for array in arrays}) == 1:
        return np.concatenate(arrays)
    shape = sum(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    num_cells, num_padded = sum(array.size for array in arrays), shape[0] * shape[1]
    if num_padded > max(_MAX_PADDING * num_cells, _FEW_CELLS):
        raise ValueError(f"the lists differ so much in length that {num_cells} values would be padded to {num_padded}")
    joined = np.full(shape, fill_value(arrays[0].dtype), arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined


def _lists_among(names: Sequence[str]) -> list[tuple[int, int]]:
    stems = [name.removesuffix(NNZS) for name in names if name.endswith(NNZS)]
    return [(names.index(stem + VALUES), names.index(stem + NNZS)) for stem in stems if stem + VALUES in names]


def _candidates_of(model: ServedModel) -> Candidates | None:
    """Return the tensors with one value per candidate, or None if the model scores one candidate per row."""
    names = names_in(model.parameters.get(CANDIDATES, ""))
    if not names:
        return None
    known = {tensor.name for tensor in model.inputs if tensor.dims == (-1,) and not tensor.optional}
    if unknown := sorted(set(names) - known):
        raise pb_utils.TritonModelException(
            f"parameter {CANDIDATES} lists {unknown}, expected only inputs with dims [-1]."
        )
    many = {*names, *(name + VALID for name in names)}
    made = [tensor.name for tensor in model.outputs]
    lists = {values_at for values_at, _ in _lists_among(made)}
    return Candidates(
        inputs={at: tensor.name for at, tensor in enumerate(model.inputs) if tensor.name in many},
        outputs={at: made[at] for at, t in enumerate(model.outputs) if t.dims == (-1,) and at not in lists},
        max_per_row=whole_number(model.parameters, MAX_LIST_LENGTH, 0),
        max_scores=max(model.max_batch_size, 1),
    )
