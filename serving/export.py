"""export: prepared data and trained model → one Triton ensemble.

The serving graph is merlin-systems' own (`TransformWorkflow >> PredictTensorflow`, or `PredictPyTorch`, in an
`Ensemble`); `NativeRuntime` writes it in place of `TritonExecutorRuntime`, which makes one Python model that calls the
others request by request. An export adds one version to a Triton model repository: see `serving.ensemble`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from serving.backends.offline import OfflineModel, offline_model, scoring_model
from serving.compile import compile_workflow
from serving.engines import (
    BATCH_SIZES,
    LONG_ROWS_BATCH_SIZES,
    EngineComparison,
    backend_of,
    compare_engines,
    engine_name,
)
from serving.ensemble import ExportedEnsemble, publish_version
from serving.export_config import ExportConfig
from serving.merlin import Ensemble, Runtime, Schema, TransformWorkflow, postorder_iter_nodes
from serving.model_config import EnsembleConfig, ModelConfig
from serving.onnx import convert
from serving.parity import check_parity, plan_inputs, raw_rows
from serving.plan import TransformPlan
from serving.version import Served, write_version
from workflows.errors import ArtifactError, ExportError, MissingExtraError
from workflows.prepared import PreparedData
from workflows.progress import SILENT, Progress
from workflows.trained import ONNX, Backend, TrainedModel
from workflows.upstream import nvt, ops, quiet_nvtabular


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
        output: model repository of the ensemble, which gets a version more.
        config: engine and limits.
        name: of the ensemble model.
        progress: told the steps that are done.

    Raises:
        ArtifactError: an artifact is damaged, the two do not belong together, or `output` is something else.
        ConfigError: the engine cannot run the model.
        LoweringError: the workflow holds an operator that cannot be compiled.
        ParityError: offline and served results differ.
    """
    _check_same_origin(prepared, trained)
    backend = backend_of(trained.backend, config.engine)
    workflow = prepared.workflow()
    with quiet_nvtabular():
        serving_workflow = workflow.remove_inputs([prepared.spec.label.name])
    progress.update(1, 5, "compile")
    model = offline_model(trained.backend, trained.model_path)
    candidates = prepared.candidates
    plan = compile_workflow(serving_workflow, model.dtypes(prepared.spec), candidates)
    with _forms(trained, model, needed=backend) as forms:
        served = forms[backend]
        progress.update(2, 5, "compare with NVTabular")
        offline_workflow = _offline_workflow(prepared, serving_workflow)
        heldout = prepared.heldout()
        parity = check_parity(offline_workflow, plan, model, heldout, served_model=served.model, candidates=candidates)
        progress.update(3, 5, "compare engines")
        engines = _compare(forms, plan, heldout, LONG_ROWS_BATCH_SIZES if candidates else BATCH_SIZES)
        progress.update(4, 5, "write")
        details: dict[str, Any] = {
            "config": asdict(config),
            "engine": engine_name(backend),
            "engines": engines and asdict(engines),
            "parity": asdict(parity),
            "run_id": trained.run_id,
            "tracking_uri": trained.tracking_uri,
            "metrics": dict(trained.metrics),
        }
        made_from = {manifest.kind: manifest.fingerprint for manifest in (prepared.manifest, trained.manifest)}
        with (
            publish_version(output, name, made_from=made_from, details=details, keep=config.keep_versions) as version,
            quiet_nvtabular(),
        ):
            transform = _TypedTransform(serving_workflow, plan)
            scorer = model.operator(transform.compute_output_schema())
            graph = serving_workflow.input_schema.column_names >> transform >> scorer
            Ensemble(graph, serving_workflow.input_schema).export(
                str(version.directory),
                runtime=NativeRuntime(plan, served, model.OPERATOR, candidates),
                config=config,
                name=name,
                version=version.number,
            )
    progress.update(5, 5, "published")
    return ExportedEnsemble.load(output, version.number)


@contextmanager
def _forms(trained: TrainedModel, model: OfflineModel, *, needed: Backend) -> Iterator[dict[Backend, Served]]:
    """The trained model, and what it is converted to; a conversion that is not needed may fail."""
    forms = {trained.backend: Served(backend=trained.backend, path=trained.model_path, model=model)}
    with TemporaryDirectory(prefix="rankline-export-") as directory:
        path = Path(directory) / ONNX.file_name
        try:
            convert(trained, path)
            forms[ONNX] = Served(backend=ONNX, path=path, model=scoring_model(ONNX, path))
        except (ExportError, MissingExtraError, ArtifactError):
            if needed == ONNX:
                raise
        yield forms


def _compare(
    forms: Mapping[Backend, Served], plan: TransformPlan, heldout: pa.Table, batch_sizes: Sequence[int]
) -> EngineComparison | None:
    """How fast the forms of a model are; None where there is only one."""
    rows = raw_rows(plan, heldout, max(batch_sizes))
    models = {engine_name(backend): form.model for backend, form in forms.items()}
    if len(models) < 2 or not len(rows):
        return None
    return compare_engines(models, plan.run(*plan_inputs(plan, rows)), batch_sizes=batch_sizes)


class _TypedTransform(TransformWorkflow):  # type: ignore[misc]  # merlin has no annotations
    """A workflow whose outputs have the dtypes that the plan gives them, or merlin-systems refuses the graph."""

    def __init__(self, workflow: nvt.Workflow, plan: TransformPlan) -> None:
        super().__init__(workflow)
        self._dtypes = {column.name: column.spec.numpy_dtype for column in plan.columns}

    def compute_output_schema(self, *_: Any, **__: Any) -> Schema:
        """The workflow's, as it is served."""
        columns = self.workflow.output_schema.column_schemas
        return Schema([column.with_dtype(self._dtypes[name]) for name, column in columns.items()])


class NativeRuntime(Runtime):  # type: ignore[misc]  # merlin has no annotations
    """Writes a merlin-systems graph as the steps of a native Triton ensemble.

    Args:
        plan: the compiled form of the graph's workflow.
        served: what is served as the graph's model.
        operator: the operator of merlin-systems that stands for the model in the graph.
        candidates: raw columns that may hold several values per row of a request. The graph, which knows of no such
            thing, has one.
    """

    def __init__(self, plan: TransformPlan, served: Served, operator: type, candidates: Sequence[str] = ()) -> None:
        super().__init__()
        self._plan, self._served, self._operator, self._candidates = plan, served, operator, candidates

    def export(
        self, ensemble: Ensemble, path: str, *, config: ExportConfig, name: str, version: int
    ) -> list[ModelConfig | EnsembleConfig]:
        """Write a version below `path`, but for its manifest.

        Args:
            ensemble: a graph of exactly one workflow and the model after it.
            path: existing directory.
            config: limits.
            name: of the ensemble model.
            version: its number.

        Returns:
            The configurations that were written, the ensemble's last.

        Raises:
            ExportError: the graph has another shape.
        """
        ops = [node.op for node in postorder_iter_nodes(ensemble.graph.output_node)]
        wanted = (TransformWorkflow, self._operator)
        if any(sum(isinstance(op, kind) for op in ops) != 1 for kind in wanted):
            raise ExportError(
                f"the graph holds {[type(op).__name__ for op in ops]}, "
                f"expected {' >> '.join(kind.__name__ for kind in wanted)}."
            )
        return write_version(
            Path(path), self._plan, self._served, config, name=name, version=version, candidates=self._candidates
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
