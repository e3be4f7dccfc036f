"""A transport for `Client` that scores with an exported ensemble in this process, without a server.

It runs the same steps as Triton in the same sessions as their backends, and verifies their files against the manifest.
Rows are checked and encoded by the client. Threads may share the transport.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rankline.serving.client import Client, ModelSchema
from rankline.serving.client.encoding import Array, WireTensor
from rankline.serving.engines import engine_of_backend
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.triton.step import CANDIDATES, MANIFEST_PARAMETER, MAX_LIST_LENGTH, PLAN, check_step, names_in
from rankline.serving.triton.transforms import load_call
from rankline.workflows.core.errors import RanklineError, RequestError
from rankline.workflows.plan import Transform, TransformPlan
from rankline.workflows.plan.tensors import unknown_columns as unknown_in
from rankline.workflows.schema.tensors import Tensor

_Run: TypeAlias = "Callable[[Mapping[str, Any]], Mapping[str, Array]]"


class _LocalClient(Client):
    def __init__(self, ensemble: ExportedEnsemble) -> None:
        self.steps = InProcess(ensemble)
        super().__init__(str(ensemble.path), ensemble.name, transport=self.steps)


def open_ensemble(ensemble: ExportedEnsemble) -> Client:
    """Load an ensemble into this process, verify its files, and return a client for it."""
    return _LocalClient(ensemble)


def unknown_columns(client: Client, rows: Any) -> list[str]:
    """Return the names of columns for which no value in the first rows occurs in the exported vocabulary.

    The result is empty for a client of a server, and for workflows run through NVTabular.
    """
    if not isinstance(client, _LocalClient) or not (messages := client.prepare(rows).messages):
        return []
    tensors = messages[0]
    plan = client.steps.transform_of([column.name for column in client.schema.columns])
    has_several = any(tensors[name].shape[1] > 1 for name in client.schema.candidates if name in tensors)
    return unknown_in(plan, tensors) if isinstance(plan, TransformPlan) and not has_several else []


class InProcess:
    """A `Transport` that runs the steps of an ensemble in this process."""

    def __init__(self, ensemble: ExportedEnsemble) -> None:
        self._ensemble = ensemble
        self._config = ensemble.model_config
        self._transforms: list[Transform] = []
        self._steps = [
            (self._load(step.model_name), dict(step.input_map), dict(step.output_map))
            for step in self._config.ensemble_scheduling.step
        ]

    def transform_of(self, columns: Iterable[str]) -> Transform | None:
        """Return the transform whose inputs include all `columns`, or None. The relay step of a wide table reads only
        some of the columns.
        """
        names = set(columns)
        return next((found for found in self._transforms if names <= {spec.name for spec in found.inputs}), None)

    async def describe(self, model_name: str, timeout_s: float) -> Any:  # noqa: ARG002  (there is one)
        return self._config

    async def model_names(self, timeout_s: float) -> list[str]:  # noqa: ARG002
        return [self._ensemble.name]

    def encode(self, schema: ModelSchema, tensors: Sequence[WireTensor]) -> Mapping[str, Any]:  # noqa: ARG002
        return {tensor.schema.name: _array(tensor) for tensor in tensors}

    async def infer(self, message: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:  # noqa: ARG002
        """Run all steps. Raise RequestError if a step cannot process the rows."""
        tensors = dict(message)
        for run, inputs, outputs in self._steps:
            made = run({name: tensors[source] for name, source in inputs.items() if source in tensors})
            tensors |= {target: made[name] for name, target in outputs.items()}
        return tensors

    def decode(self, response: Mapping[str, Any], tensor: Tensor) -> Array:
        output: Array = response[tensor.name]
        return output

    async def close(self) -> None:
        pass

    def _load(self, name: str) -> _Run:
        config = self._ensemble.step_config(name)
        parameters = {key: entry.string_value for key, entry in config.parameters.items()}
        directory = self._ensemble.path / name
        check_step(directory, parameters[MANIFEST_PARAMETER])
        version = directory / "1"
        if config.backend == "nvtabular":
            return self._plan(version, parameters)
        model = _model(version, config.backend, [entry.name for entry in config.output])
        if not (version / PLAN).is_dir():
            return model
        plan = self._plan(version, parameters)
        return lambda tensors: model(plan(tensors))

    def _plan(self, version: Path, parameters: Mapping[str, str]) -> _Run:
        candidates = names_in(parameters.get(CANDIDATES, ""))
        transform, call = load_call(version / PLAN, candidates, int(parameters.get(MAX_LIST_LENGTH, 0)))
        self._transforms.append(transform)
        return call


def _model(version: Path, backend: str, outputs: Sequence[str]) -> _Run:
    engine = engine_of_backend(backend)
    engine.require(feature=f"scoring with the engine {engine.name}")
    served_call = cache(engine.load(version / engine.format).served_call)

    def call(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        run = served_call(tuple(tensors))
        try:
            made = run(*tensors.values())
        except RanklineError:
            raise
        except Exception as error:  # engines raise anything
            reason = str(error).partition("\n")[0]
            raise RequestError(f"{engine.name} failed to score the rows: {reason}") from error
        return dict(zip(outputs, made, strict=True))

    return call


def _array(tensor: WireTensor) -> Any:
    """Return a tensor's values in its shape. Scalar strings stay in Arrow, which the plan accepts without a copy."""
    values: Any = tensor.values
    if isinstance(values, pa.Array):
        if tensor.schema.is_scalar:
            return values
        values = values.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values).reshape(tensor.shape)
