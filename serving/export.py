"""export: prepared data and trained model → one Triton ensemble.

The serving graph is merlin-systems' own (`TransformWorkflow >> PredictTensorflow`, or `PredictPyTorch`, in an
`Ensemble`); `NativeRuntime` writes it in place of `TritonExecutorRuntime`, which makes one Python model that calls the
others request by request. An exported ensemble is one directory, which is a Triton model repository:

    NAME/                NAME/config.pbtxt             platform: "ensemble"
    NAME_transform/      config.pbtxt, 1/plan          backend: "nvtabular"
    NAME_predict/        config.pbtxt, 1/model.savedmodel   backend: "tensorflow", or 1/model.pt and "pytorch"
    manifest.json
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving.backends.offline import OfflineModel, offline_model
from serving.compile import compile_workflow
from serving.ensemble import KIND, ExportedEnsemble
from serving.export_config import ExportConfig
from serving.merlin import Ensemble, Runtime, TransformWorkflow, postorder_iter_nodes
from serving.model_config import EnsembleConfig, ModelConfig, Step, Tensor, to_pbtxt
from serving.parity import check_parity
from serving.plan import TensorSpec, TransformPlan
from workflows.artifacts import publish
from workflows.errors import ArtifactError, ExportError
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.tensor_names import NNZS, SCORE, VALUES
from workflows.trained import TrainedModel
from workflows.upstream import nvt, ops, quiet_nvtabular

VERSION = "1"
_ENCODED = "encoded."  # prefix of the tensors between the steps, since raw and encoded columns share their names


def export_ensemble(
    prepared: PreparedData,
    trained: TrainedModel,
    output: Path,
    config: ExportConfig,
    *,
    name: str,
    progress: Progress = SILENT,
) -> ExportedEnsemble:
    """Compile, compare, write and publish.

    Args:
        prepared: the data that the model was trained on.
        trained: the model.
        output: directory of the ensemble, replaced when it is whole.
        config: limits.
        name: of the ensemble model; the steps are NAME_transform and NAME_predict.
        progress: told the steps that are done.

    Raises:
        ArtifactError: an artifact is damaged, or the two do not belong together.
        LoweringError: the workflow holds an operator that cannot be compiled.
        ParityError: offline and served results differ.
    """
    _check_same_origin(prepared, trained)
    workflow = prepared.workflow()
    with quiet_nvtabular():
        serving_workflow = workflow.remove_inputs([prepared.spec.label.name])
    progress.update(1, 4, "compile")
    plan = compile_workflow(serving_workflow)
    progress.update(2, 4, "compare with NVTabular")
    model = offline_model(trained.backend, trained.model_path)
    parity = check_parity(_offline_workflow(prepared, serving_workflow), plan, model, prepared.heldout())
    progress.update(3, 4, "write")
    details: dict[str, Any] = {
        "name": name,
        "config": asdict(config),
        "parity": asdict(parity),
        "run_id": trained.run_id,
        "tracking_uri": trained.tracking_uri,
        "metrics": dict(trained.metrics),
    }
    made_from = {manifest.kind: manifest.fingerprint for manifest in (prepared.manifest, trained.manifest)}
    with publish(output, KIND, made_from=made_from, details=details) as directory, quiet_nvtabular():
        graph = (
            serving_workflow.input_schema.column_names
            >> TransformWorkflow(serving_workflow)
            >> model.operator(serving_workflow.output_schema)
        )
        ensemble = Ensemble(graph, serving_workflow.input_schema)
        ensemble.export(str(directory), runtime=NativeRuntime(plan, trained, model), config=config, name=name)
    progress.update(4, 4, "published")
    return ExportedEnsemble.load(output)


class NativeRuntime(Runtime):  # type: ignore[misc]  # merlin has no annotations
    """Writes a merlin-systems graph as a native Triton ensemble.

    Args:
        plan: the compiled form of the graph's workflow.
        trained: the graph's model.
        model: the same, loaded.
    """

    def __init__(self, plan: TransformPlan, trained: TrainedModel, model: OfflineModel) -> None:
        super().__init__()
        self._plan, self._trained, self._model = plan, trained, model

    def export(
        self, ensemble: Ensemble, path: str, *, config: ExportConfig, name: str
    ) -> list[ModelConfig | EnsembleConfig]:
        """Write the model directories below `path`.

        Args:
            ensemble: a graph of exactly one workflow and the model after it.
            path: existing directory.
            config: limits.
            name: of the ensemble model.

        Returns:
            The configurations that were written, the ensemble's last.

        Raises:
            ExportError: the graph has another shape.
        """
        ops = [node.op for node in postorder_iter_nodes(ensemble.graph.output_node)]
        wanted = (TransformWorkflow, self._model.OPERATOR)
        if any(sum(isinstance(op, kind) for op in ops) != 1 for kind in wanted):
            raise ExportError(
                f"the graph holds {[type(op).__name__ for op in ops]}, "
                f"expected {' >> '.join(kind.__name__ for kind in wanted)}."
            )
        transform = self._transform_config(config, name)
        backend = self._trained.backend
        predict = ModelConfig(
            name=f"{name}_predict",
            backend=backend.name,
            platform=backend.platform,  # without it Triton refuses a missing model before our backend can say so
            inputs=transform.outputs,
            outputs=(Tensor(name=self._model.OUTPUT, dtype="float32"),),
            max_batch_size=config.max_batch_size,
            parameters=self._model.PARAMETERS,
        )
        whole = _ensemble_config(name, transform, predict)
        configs: list[ModelConfig | EnsembleConfig] = [transform, predict, whole]
        for entry in configs:
            version = Path(path) / entry.name / VERSION
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(to_pbtxt(entry), encoding="utf-8")
        self._plan.save(Path(path) / transform.name / VERSION / "plan")
        source, target = self._trained.model_path, Path(path) / predict.name / VERSION / backend.file_name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return configs

    def _transform_config(self, config: ExportConfig, name: str) -> ModelConfig:
        return ModelConfig(
            name=f"{name}_transform",
            backend="nvtabular",
            inputs=tuple(tensor for spec in self._plan.inputs for tensor in _tensors(spec)),
            outputs=tuple(tensor for column in self._plan.columns for tensor in _tensors(column.spec)),
            max_batch_size=config.max_batch_size,
        )


def _tensors(spec: TensorSpec) -> tuple[Tensor, ...]:
    """A column as tensors; lists of any width have the dimension -1, which is what Triton calls it too."""
    if spec.width is None:
        return (Tensor(name=spec.name, dtype=spec.dtype),)
    values = Tensor(name=spec.name + VALUES, dtype=spec.dtype, dims=(spec.width,))
    return values, Tensor(name=spec.name + NNZS, dtype="int32")


def _ensemble_config(name: str, transform: ModelConfig, predict: ModelConfig) -> EnsembleConfig:
    between = {tensor.name: _ENCODED + tensor.name for tensor in transform.outputs}
    return EnsembleConfig(
        name=name,
        inputs=transform.inputs,
        outputs=(Tensor(name=SCORE, dtype="float32"),),
        max_batch_size=transform.max_batch_size,
        steps=(
            Step(model=transform.name, inputs={t.name: t.name for t in transform.inputs}, outputs=between),
            Step(model=predict.name, inputs=between, outputs={predict.outputs[0].name: SCORE}),
        ),
    )


def _offline_workflow(prepared: PreparedData, serving_workflow: nvt.Workflow) -> nvt.Workflow:
    """The workflow to compare with: the served one, or with its label where it encodes targets.

    NVTabular's `TargetEncoding` names its columns by targets that must be there, and takes the statistics of a random
    fold unless there is one; what is served are those of all rows.
    """
    if not _target_encodings(serving_workflow):
        return serving_workflow
    workflow = prepared.workflow()
    for operator in _target_encodings(workflow):
        operator.kfold = 1
    return workflow


def _target_encodings(workflow: nvt.Workflow) -> list[Any]:
    nodes = postorder_iter_nodes(workflow.output_node)
    return [node.op for node in nodes if isinstance(node.op, ops.TargetEncoding)]


def _check_same_origin(prepared: PreparedData, trained: TrainedModel) -> None:
    origin = trained.manifest.made_from.get(prepared.manifest.kind)
    if origin != prepared.manifest.fingerprint:
        raise ArtifactError(
            f"{trained.path} was trained on prepared data {str(origin)[:12]}, but {prepared.path} is "
            f"{prepared.manifest.fingerprint[:12]}. Give the data that the model was trained on, or train again."
        )
