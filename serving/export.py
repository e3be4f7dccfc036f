"""export: prepared data and trained model → one Triton ensemble.

The serving graph is merlin-systems' own (`TransformWorkflow >> PredictTensorflow` in an `Ensemble`); `NativeRuntime`
writes it in place of `TritonExecutorRuntime`, which makes one Python model that calls the others request by request.
An exported ensemble is one directory, and that directory is a Triton model repository:

    NAME/                NAME/config.pbtxt             platform: "ensemble"
    NAME_transform/      config.pbtxt, 1/plan          backend: "nvtabular"
    NAME_predict/        config.pbtxt, 1/model.savedmodel   backend: "tensorflow"
    manifest.json
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving.compile import compile_workflow
from serving.ensemble import KIND, ExportedEnsemble
from serving.export_config import ExportConfig
from serving.merlin import Ensemble, PredictTensorflow, Runtime, TransformWorkflow, postorder_iter_nodes
from serving.model_config import EnsembleConfig, ModelConfig, Step, Tensor, to_pbtxt
from serving.parity import check_parity
from serving.plan import TransformPlan
from workflows.artifacts import publish
from workflows.errors import ArtifactError, ExportError
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.tensor_names import NNZS, PADDED_SIGNATURE, SCORE, VALUES
from workflows.trained import SAVED_MODEL, TrainedModel
from workflows.upstream import quiet_nvtabular

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
    progress.update(2, 4, "compare with NVTabular and TensorFlow")
    parity = check_parity(serving_workflow, plan, trained.saved_model, prepared.heldout())
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
            >> PredictTensorflow(str(trained.saved_model))
        )
        ensemble = Ensemble(graph, serving_workflow.input_schema)
        ensemble.export(str(directory), runtime=NativeRuntime(plan), config=config, name=name)
    progress.update(4, 4, "published")
    return ExportedEnsemble.load(output)


class NativeRuntime(Runtime):  # type: ignore[misc]  # merlin has no annotations
    """Writes a merlin-systems graph as a native Triton ensemble.

    Args:
        plan: the compiled form of the graph's workflow.
    """

    def __init__(self, plan: TransformPlan) -> None:
        super().__init__()
        self._plan = plan

    def export(
        self, ensemble: Ensemble, path: str, *, config: ExportConfig, name: str
    ) -> list[ModelConfig | EnsembleConfig]:
        """Write the model directories below `path`.

        Args:
            ensemble: a graph of exactly one workflow and one TensorFlow model after it.
            path: existing directory.
            config: limits.
            name: of the ensemble model.

        Returns:
            The configurations that were written, the ensemble's last.

        Raises:
            ExportError: the graph has another shape.
        """
        ops = [node.op for node in postorder_iter_nodes(ensemble.graph.output_node)]
        models = [op for op in ops if isinstance(op, PredictTensorflow)]
        if sum(isinstance(op, TransformWorkflow) for op in ops) != 1 or len(models) != 1:
            raise ExportError(
                f"the graph holds {[type(op).__name__ for op in ops]}, expected TransformWorkflow >> PredictTensorflow."
            )
        transform = self._transform_config(config, name)
        predict = ModelConfig(
            name=f"{name}_predict",
            backend="tensorflow",
            platform="tensorflow_savedmodel",  # without it Triton refuses a missing SavedModel before we can say so
            inputs=transform.outputs,
            outputs=(Tensor(name=SCORE, dtype="float32"),),
            max_batch_size=config.max_batch_size,
            parameters={"TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": PADDED_SIGNATURE},
        )
        whole = _ensemble_config(name, transform, predict)
        configs: list[ModelConfig | EnsembleConfig] = [transform, predict, whole]
        for entry in configs:
            version = Path(path) / entry.name / VERSION
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(to_pbtxt(entry), encoding="utf-8")
        self._plan.save(Path(path) / transform.name / VERSION / "plan")
        shutil.copytree(models[0].path, Path(path) / predict.name / VERSION / SAVED_MODEL)
        return configs

    def _transform_config(self, config: ExportConfig, name: str) -> ModelConfig:
        outputs: list[Tensor] = []
        for spec in (column.spec for column in self._plan.columns):
            if spec.width is None:
                outputs.append(Tensor(name=spec.name, dtype=spec.dtype))
            else:
                outputs.append(Tensor(name=spec.name + VALUES, dtype=spec.dtype, dims=(spec.width,)))
                outputs.append(Tensor(name=spec.name + NNZS, dtype="int32"))
        return ModelConfig(
            name=f"{name}_transform",
            backend="nvtabular",
            inputs=tuple(Tensor(name=spec.name, dtype=spec.dtype) for spec in self._plan.inputs),
            outputs=tuple(outputs),
            max_batch_size=config.max_batch_size,
        )


def _ensemble_config(name: str, transform: ModelConfig, predict: ModelConfig) -> EnsembleConfig:
    between = {tensor.name: _ENCODED + tensor.name for tensor in transform.outputs}
    return EnsembleConfig(
        name=name,
        inputs=transform.inputs,
        outputs=predict.outputs,
        max_batch_size=transform.max_batch_size,
        steps=(
            Step(model=transform.name, inputs={t.name: t.name for t in transform.inputs}, outputs=between),
            Step(model=predict.name, inputs=between, outputs={t.name: t.name for t in predict.outputs}),
        ),
    )


def _check_same_origin(prepared: PreparedData, trained: TrainedModel) -> None:
    origin = trained.manifest.made_from.get(prepared.manifest.kind)
    if origin != prepared.manifest.fingerprint:
        raise ArtifactError(
            f"{trained.path} was trained on prepared data {str(origin)[:12]}, but {prepared.path} is "
            f"{prepared.manifest.fingerprint[:12]}. Give the data that the model was trained on, or train again."
        )
