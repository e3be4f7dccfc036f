"""The files of one version of an ensemble: one or two steps, and the ensemble around them.

NAME/N/                config.pbtxt                       platform: "ensemble"
NAME_score_vN/         config.pbtxt, 1/plan, 1/model.*    backend: the engine's, such as "tensorflow"

or, not fused:

NAME_transform_vN/     config.pbtxt, 1/plan               backend: "nvtabular"
NAME_predict_vN/       config.pbtxt, 1/model.*            backend: the engine's

and before the single step of a wide table, see `rankline.serving.export.relay`:

NAME_relay_vN/         config.pbtxt, 1/plan               backend: "nvtabular"
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from rankline.serving.engines import Engine
from rankline.serving.export.config import NATIVE, ExportConfig
from rankline.serving.export.relay import relay
from rankline.serving.repository.ensemble import CONFIG
from rankline.serving.triton.checksums import MANIFEST_PARAMETER
from rankline.serving.triton.config import PYTHON_RUNTIME, EnsembleConfig, ModelConfig, Step, to_pbtxt
from rankline.serving.triton.parameters import CANDIDATES, CLASSES, MAX_LIST_LENGTH, PLAN
from rankline.workflows.plan import CandidatePlan, ColumnSpec, Transform, TransformPlan
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
    config = config.settled(optional, len(plan.inputs))
    steps = list(_steps(plan, served, config, name, version, candidates, optional))
    plans = {steps[0].name: plan}
    takes_raw = steps[0]
    is_native = all(native_steps(plan, served.engine, config).values())
    if is_native and (relayed := relay(takes_raw.inputs)) is not None:
        steps.insert(0, _relay_step(relayed, takes_raw, f"{name}_relay_v{version}"))
        plans[steps[0].name] = relayed
    for step in steps:
        (directory / step.name / _STEP_VERSION).mkdir(parents=True)
        (directory / step.name / CONFIG).write_text(to_pbtxt(step), encoding="utf-8")
    whole = _ensemble_config(name, version, takes_raw, steps, served)
    (directory / name / str(version)).mkdir(parents=True)
    (directory / name / str(version) / CONFIG).write_text(to_pbtxt(whole), encoding="utf-8")
    for step_name, its_plan in plans.items():
        its_plan.save(directory / step_name / _STEP_VERSION / PLAN)
    served.copy_to(directory / steps[-1].name / _STEP_VERSION)
    return [*steps, whole]


def _relay_step(plan: TransformPlan, following: ModelConfig, name: str) -> ModelConfig:
    tensors = tuple(tensor for column in plan.columns for tensor in column.spec.tensors)
    manifest = following.parameters[MANIFEST_PARAMETER]
    return replace(
        following,
        name=name,
        backend="nvtabular",
        platform="",
        inputs=tensors,
        outputs=tensors,
        parameters={MANIFEST_PARAMETER: manifest},
        batch_delay_us=0,
    )


def _steps(
    plan: Transform,
    served: Served,
    config: ExportConfig,
    name: str,
    version: int,
    candidates: Sequence[str],
    optional: Collection[str],
) -> tuple[ModelConfig, ...]:
    manifest = f"{name}/{version}/{MANIFEST}"
    native = native_steps(plan, served.engine, config)

    def step(kind: str, parameters: Mapping[str, str], **fields: Any) -> ModelConfig:
        return ModelConfig(
            name=f"{name}_{kind}_v{version}",
            max_batch_size=config.most_rows(with_candidates=bool(candidates)),
            instances=config.num_instances,
            batch_delay_us=0 if kind == "transform" else int(config.batch_delay_ms * 1000),
            max_queue_size=config.max_queue_size,
            queue_timeout_us=int(config.queue_timeout_ms * 1000),
            parameters={MANIFEST_PARAMETER: manifest, **parameters},
            runtime=_runtime(kind, native[kind], config),
            **fields,
        )

    engine = served.engine
    made = CandidatePlan.of(plan, candidates).made_of_candidates if candidates else ()
    raw = tuple(
        replace(tensor, optional=tensor.optional or spec.name in optional)
        for spec in plan.inputs
        for tensor in (*_tensors(spec, candidates), *_mask(spec, candidates))
    )
    encoded = tuple(tensor for column in plan.columns for tensor in _tensors(column.spec, made))
    scores = tuple(_of_candidates(tensor) if candidates else tensor for tensor in served.engine_outputs)
    of_plan = {MAX_LIST_LENGTH: str(config.max_list_length), **_named(candidates)}
    of_model = dict(engine.parameters)
    if engine.threads_parameter:
        of_model[engine.threads_parameter] = str(config.num_threads)
    if config.fused:
        return (
            step(
                "score",
                {**of_plan, **of_model},
                backend=engine.backend,
                platform=engine.platform,
                inputs=raw,
                outputs=scores,
            ),
        )
    return (
        step("transform", of_plan, backend="nvtabular", inputs=raw, outputs=encoded),
        # Without the platform, Triton rejects a missing model before our backend can report it.
        step(
            "predict",
            {**of_model, **_named(made)},
            backend=engine.backend,
            platform=engine.platform,
            inputs=encoded,
            outputs=scores,
        ),
    )


def native_steps(plan: Transform, engine: Engine, config: ExportConfig) -> dict[str, bool]:
    """Map each step to whether it runs without Python on a machine that has the native backends."""
    compiled, in_c = isinstance(plan, TransformPlan), bool(engine.library)
    forms = {"score": compiled and in_c} if config.fused else {"transform": compiled, "predict": in_c}
    return {kind: has_one and config.backend == NATIVE for kind, has_one in forms.items()}


def _runtime(kind: str, is_native: bool, config: ExportConfig) -> str:
    """Return Python's runtime if it was requested, or if our native backend would be chosen but could not run the step.

    Otherwise leave the runtime open: a server with the native backend uses it, others use Python. It is also left open
    for a model whose engine has only a Python backend, since Triton may have its own backend for the engine.
    """
    return "" if is_native or (kind == "predict" and config.backend == NATIVE) else PYTHON_RUNTIME


def _named(candidates: Sequence[str]) -> dict[str, str]:
    return {CANDIDATES: ",".join(candidates)} if candidates else {}


def _tensors(spec: ColumnSpec, candidates: Collection[str]) -> tuple[Tensor, ...]:
    return tuple(_of_candidates(tensor) for tensor in spec.tensors) if spec.name in candidates else spec.tensors


def _mask(spec: ColumnSpec, candidates: Collection[str]) -> tuple[Tensor, ...]:
    if spec.mask is None:
        return ()
    return (_of_candidates(spec.mask) if spec.name in candidates else spec.mask,)


def _of_candidates(tensor: Tensor) -> Tensor:
    """Return a tensor that holds either one value per row or one value per candidate."""
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
