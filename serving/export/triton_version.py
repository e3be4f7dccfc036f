"""Write the files of one version of an ensemble: its steps, and the ensemble that connects them.

NAME/N/                config.pbtxt                       platform: "ensemble"
NAME_score_vN/         config.pbtxt, 1/plan, 1/model.*    backend: the engine's, such as "tensorflow"

or, not fused:

NAME_transform_vN/     config.pbtxt, 1/plan               backend: "nvtabular"
NAME_predict_vN/       config.pbtxt, 1/model.*            backend: the engine's

and before the single step of a wide table, see `relay`:

NAME_relay_vN/         config.pbtxt, 1/plan               backend: "nvtabular"
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from operator import itemgetter
from pathlib import Path

from rankline.serving.engines import Engine
from rankline.serving.export.config import NATIVE, WIDE, ExportConfig
from rankline.serving.repository.ensemble import CONFIG
from rankline.serving.triton.config import PYTHON_RUNTIME, EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.serving.triton.step import CANDIDATES, CLASSES, MANIFEST_PARAMETER, MAX_LIST_LENGTH, PLAN
from rankline.workflows.plan import CandidatePlan, ColumnSpec, Computed, Transform, TransformPlan
from rankline.workflows.schema.targets import Head, output_names, usual_heads
from rankline.workflows.schema.tensor_names import SCORE
from rankline.workflows.schema.tensors import Tensor
from rankline.workflows.storage.artifacts import MANIFEST

_STEP_VERSION = "1"  # the step's name contains the version of the ensemble
_ENCODED = "encoded."  # prefix of the tensors between the steps, since raw and encoded columns share their names


@dataclass(frozen=True, kw_only=True)
class Served:
    engine: Engine
    path: Path
    heads: tuple[Head, ...] = usual_heads([SCORE])

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        named = zip(output_names(self.heads), self.heads, strict=True)
        return tuple(
            Tensor(name=name, dtype="float32", dims=(head.width,)) for name, head in sorted(named, key=itemgetter(0))
        )

    @property
    def engine_outputs(self) -> tuple[Tensor, ...]:
        pattern, names = self.engine.output, output_names(self.heads)
        return tuple(
            replace(tensor, name=pattern.format(name=tensor.name, place=names.index(tensor.name)))
            for tensor in self.outputs
        )

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters that clients need in addition to names and shapes."""
        named = zip(output_names(self.heads), self.heads, strict=True)
        classes = {name: head.classes for name, head in named if head.classes}
        return {CLASSES: json.dumps(classes, ensure_ascii=False)} if classes else {}

    def copy_to(self, directory: Path) -> None:
        target = directory / self.engine.format
        if self.path.is_dir():
            shutil.copytree(self.path, target)
        else:
            shutil.copy(self.path, target)


def relay(tensors: Sequence[Tensor]) -> TransformPlan | None:
    """Return a plan that passes some input tensors of a wide table through unchanged, or None for other tables.

    When n tensors arrive together, Triton's scheduler checks for each of them whether the next step is ready, and each
    check goes through the step's inputs up to the first missing one: n² lookups, about 40 ms for 900 columns. Therefore
    about √n columns first pass through a step that returns them unchanged. While these are missing, a check ends after
    √n inputs on average; after that, only √n tensors arrive.
    """
    if len(tensors) < WIDE:
        return None
    always_there = [tensor for tensor in tensors if tensor.dims == (1,) and not tensor.optional]
    specs = tuple(ColumnSpec(name=tensor.name, dtype=tensor.dtype) for tensor in always_there[: isqrt(len(tensors))])
    columns = tuple(Computed(name=spec.name, source=spec.name, dtype=spec.dtype) for spec in specs)
    return TransformPlan(inputs=specs, indexes=(), columns=columns) if specs else None


def write_version(
    directory: Path,
    plan: Transform,
    served: Served,
    config: ExportConfig,
    *,
    name: str,
    version: int,
    candidates: Sequence[str] = (),
    optional: Collection[str] = (),
) -> list[ModelConfig | EnsembleConfig]:
    config = config.with_resolved_layout(optional, len(plan.inputs))
    steps = _steps(plan, served, config, name, version, candidates, optional)
    for step, its_plan in steps:
        (directory / step.name / _STEP_VERSION).mkdir(parents=True)
        (directory / step.name / CONFIG).write_text(to_pbtxt(step), encoding="utf-8")
        if its_plan is not None:
            its_plan.save(directory / step.name / _STEP_VERSION / PLAN)
    configs = [step for step, _ in steps]
    takes_raw = next(step for step, its_plan in steps if its_plan is plan)
    whole = _ensemble_config(name, version, takes_raw, configs, served)
    (directory / name / str(version)).mkdir(parents=True)
    (directory / name / str(version) / CONFIG).write_text(to_pbtxt(whole), encoding="utf-8")
    served.copy_to(directory / configs[-1].name / _STEP_VERSION)
    return [*configs, whole]


def _steps(
    plan: Transform,
    served: Served,
    config: ExportConfig,
    name: str,
    version: int,
    candidates: Sequence[str],
    optional: Collection[str],
) -> list[tuple[ModelConfig, Transform | None]]:
    """Return the configs of the steps in execution order, each with its plan or None."""
    engine, native = served.engine, native_steps(plan, served.engine, config)

    def step(
        kind: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], parameters: Mapping[str, str]
    ) -> ModelConfig:
        is_plan_alone = kind in ("relay", "transform")
        return ModelConfig(
            name=f"{name}_{kind}_v{version}",
            backend="nvtabular" if is_plan_alone else engine.backend,
            # Without the platform, Triton rejects a missing model before our backend can report it.
            platform="" if is_plan_alone else engine.platform,
            inputs=inputs,
            outputs=outputs,
            max_batch_size=config.max_rows(with_candidates=bool(candidates)),
            instances=config.num_instances,
            batch_delay_us=0 if is_plan_alone else int(config.batch_delay_ms * 1000),
            max_queue_size=config.max_queue_size,
            queue_timeout_us=int(config.queue_timeout_ms * 1000),
            parameters={MANIFEST_PARAMETER: f"{name}/{version}/{MANIFEST}", **parameters},
            runtime=_runtime(kind, native.get(kind, True), config),
        )

    made = CandidatePlan.of(plan, candidates).made_of_candidates if candidates else ()
    raw = tuple(
        replace(tensor, optional=tensor.optional or spec.name in optional)
        for spec in plan.inputs
        for tensor in _tensors(spec, candidates, spec.mask)
    )
    encoded = tuple(tensor for column in plan.columns for tensor in _tensors(column.spec, made))
    scores = tuple(_of_candidates(tensor) if candidates else tensor for tensor in served.engine_outputs)
    of_plan = {MAX_LIST_LENGTH: str(config.max_list_length), **_named(candidates)}
    of_model = dict(engine.parameters)
    if engine.threads_parameter:
        of_model[engine.threads_parameter] = str(config.num_threads)
    steps: list[tuple[ModelConfig, Transform | None]] = []
    if all(native.values()) and (relayed := relay(raw)) is not None:
        passed = tuple(tensor for column in relayed.columns for tensor in column.spec.tensors)
        steps.append((step("relay", passed, passed, {}), relayed))
    if config.fused:
        return [*steps, (step("score", raw, scores, of_plan | of_model), plan)]
    predict = step("predict", encoded, scores, of_model | _named(made))
    return [*steps, (step("transform", raw, encoded, of_plan), plan), (predict, None)]


def native_steps(plan: Transform, engine: Engine, config: ExportConfig) -> dict[str, bool]:
    """Map each step to whether it runs without Python on a machine that has the native backends."""
    compiled, in_c = isinstance(plan, TransformPlan), bool(engine.library)
    forms = {"score": compiled and in_c} if config.fused else {"transform": compiled, "predict": in_c}
    return {kind: has_one and config.backend == NATIVE for kind, has_one in forms.items()}


def _runtime(kind: str, is_native: bool, config: ExportConfig) -> str:
    """Return the Python runtime if the config requires it, or if Triton would otherwise choose our native backend for a
    step that it cannot run.

    Otherwise leave the runtime open: a server with the native backend uses it, others use Python. It is also left open
    for a model whose engine has only a Python backend, since Triton may have its own backend for the engine.
    """
    return "" if is_native or (kind == "predict" and config.backend == NATIVE) else PYTHON_RUNTIME


def _named(candidates: Sequence[str]) -> dict[str, str]:
    return {CANDIDATES: ",".join(candidates)} if candidates else {}


def _tensors(spec: ColumnSpec, candidates: Collection[str], mask: Tensor | None = None) -> tuple[Tensor, ...]:
    tensors = spec.tensors if mask is None else (*spec.tensors, mask)
    return tuple(map(_of_candidates, tensors)) if spec.name in candidates else tensors


def _of_candidates(tensor: Tensor) -> Tensor:
    """Return the tensor with a second dimension of variable size, with one value per candidate or one per row."""
    return replace(tensor, dims=(-1,), is_candidates=True)


def _ensemble_config(
    name: str, version: int, takes_raw: ModelConfig, configs: Sequence[ModelConfig], served: Served
) -> EnsembleConfig:
    steps = []
    latest = {tensor.name: tensor.name for tensor in takes_raw.inputs}
    prefix = _ENCODED
    while any(name.startswith(prefix) for name in (*latest, *(output.name for output in served.outputs))):
        prefix += _ENCODED
    for config in configs:
        made = {tensor.name: prefix + tensor.name for tensor in config.outputs}
        if config is configs[-1]:
            made = dict(zip(made, (output.name for output in served.outputs), strict=True))
        inputs = {tensor.name: latest[tensor.name] for tensor in config.inputs}
        steps.append(Step(model=config.name, inputs=inputs, outputs=made))
        latest.update(made)
    parameters = takes_raw.parameters
    return EnsembleConfig(
        name=name,
        version=version,
        inputs=takes_raw.inputs,
        outputs=tuple(
            replace(tensor, name=output.name)
            for tensor, output in zip(configs[-1].outputs, served.outputs, strict=True)
        ),
        max_batch_size=takes_raw.max_batch_size,
        steps=tuple(steps),
        parameters={key: parameters[key] for key in (CANDIDATES, MAX_LIST_LENGTH) if CANDIDATES in parameters}
        | served.parameters,
    )
