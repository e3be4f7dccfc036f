"""Export prepared data and a trained model as one Triton ensemble.

The serving graph is a merlin-systems `Ensemble` of `TransformWorkflow` and its operator for the model. `NativeRuntime`
writes the graph in place of `TritonExecutorRuntime`, which generates one Python model that calls the other models
request by request. Each export adds a version to a Triton model repository: see `rankline.serving.repository.ensemble`.
"""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankline.serving.engines import Engine, engine_for
from rankline.serving.engines.merlin_operators import Ensemble, Runtime, Schema, TransformWorkflow, postorder_iter_nodes
from rankline.serving.engines.offline import OfflineModel, ScoringModel
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.parity import (
    MAX_ROWS,
    ParityReport,
    check_batch_independence,
    check_encoding,
    check_parity,
    out_of_range,
    plan_inputs,
    rows_of,
    rows_where,
)
from rankline.serving.export.triton_version import Served, native_steps, write_version
from rankline.serving.repository.ensemble import INPUTS, MADE_IN, ExportedEnsemble, publish_version
from rankline.serving.triton.config import EnsembleConfig, ModelConfig
from rankline.serving.triton.transforms import UncompiledTransform
from rankline.workflows.compiler.compile import check_uncompiled, compile_workflow, input_specs
from rankline.workflows.core.errors import ArtifactError, ExportError, RequestError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.core.tracking_uri import kept_uri
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.nvt.io.workflow import for_inference
from rankline.workflows.plan import Transform
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import ModelArtifact, TrainedModel
from rankline.workflows.schema.targets import Head
from rankline.workflows.storage.artifacts import Manifest


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """A fitted workflow and a trained model, from a recipe or imported.

    Attributes:
        workflow: takes the raw columns of a request, without labels.
        offline_workflow: the workflow that the served transform is compared with.
        dtypes: encoded column → NumPy dtype name of the model's input.
        heldout: raw rows for the comparison.
        made_from: artifact kind → fingerprint.
        candidates: raw columns that may have several values per row of a request.
        columns: encoded columns that the model takes; None for all.
        widths: encoded list column → its length, for models with fixed lengths.
        trained_on: see `check_parity`.
    """

    workflow: nvt.Workflow
    offline_workflow: nvt.Workflow
    model: OfflineModel
    artifact: ModelArtifact
    dtypes: Mapping[str, str]
    heads: tuple[Head, ...]
    heldout: pa.Table
    made_from: Mapping[str, str]
    details: Mapping[str, Any]
    candidates: Sequence[str] = ()
    columns: Collection[str] | None = None
    widths: Mapping[str, int] = field(default_factory=dict)
    refuses_missing: bool = False
    trained_on: pa.Table | None = None


def export_ensemble(
    prepared: PreparedData,
    trained: TrainedModel,
    output: Path,
    config: ExportConfig,
    *,
    name: str,
    promote: bool = True,
    progress: Progress = SILENT,
) -> ExportedEnsemble:
    """Compile a prepared workflow, verify that served results match the original workflow and model, and publish both
    as a version in `output`.
    """
    engine_for(trained.format, config.engine)  # fail before loading the model
    exportable = exportable_of(prepared, trained)
    return publish_exportable(exportable, output, config, name=name, promote=promote, progress=progress)


def check_compiles(prepared: PreparedData, config: ExportConfig) -> None:
    """Raise an error if the workflow cannot be served as it is, so that no model is trained on its output."""
    workflow = _serving_workflow(prepared)
    if config.uncompiled_operators:
        check_uncompiled(workflow, config.uncompiled_operators)
    else:
        plan = compile_workflow(workflow, prepared.spec.model_dtypes, prepared.candidates)
        check_encoding(for_inference(workflow, prepared.workflow), plan, prepared.heldout())


def exportable_of(prepared: PreparedData, trained: TrainedModel) -> Exportable:
    _check_same_origin(prepared, trained)
    serving_workflow = _serving_workflow(prepared)
    model = engine_for(trained.format).load_trained(trained.model_path)
    exportable = Exportable(
        workflow=serving_workflow,
        offline_workflow=for_inference(serving_workflow, prepared.workflow),
        model=model,
        artifact=trained,
        dtypes=model.dtypes(prepared.spec),
        heads=prepared.spec.heads,
        heldout=prepared.heldout(),
        made_from={manifest.kind: manifest.fingerprint for manifest in (prepared.manifest, trained.manifest)},
        details={
            "run_id": trained.run_id,
            "tracking_uri": trained.tracking_uri,
            "metrics": dict(trained.metrics),
            "choices": prepared.manifest.details.get("choices"),
            MADE_IN: str(trained.path.resolve()),
            INPUTS: list(prepared.inputs),
        },
        candidates=prepared.candidates,
        trained_on=prepared.encoded(MAX_ROWS),
    )
    _check_unchanged(prepared)
    return exportable


def _serving_workflow(prepared: PreparedData) -> nvt.Workflow:
    workflow = prepared.workflow()
    with quiet_nvtabular():
        return workflow.remove_inputs([label.name for label in prepared.spec.labels])


def publish_exportable(
    exportable: Exportable,
    output: Path,
    config: ExportConfig,
    *,
    name: str,
    promote: bool = True,
    progress: Progress = SILENT,
) -> ExportedEnsemble:
    """Compile the workflow, verify that served results match the original workflow and model, and publish a version."""
    with checked(exportable, config, progress) as ready:
        progress.update(3, 4, "write")
        ensemble = ready.publish(output, config, name=name, promote=promote)
    progress.update(4, 4, "published")
    return ensemble


@contextmanager
def checked(exportable: Exportable, config: ExportConfig, progress: Progress = SILENT) -> "Iterator[CheckedExport]":
    """Compile the workflow and verify its results once. Yield a `CheckedExport` that can be published several times
    within the block.
    """
    engine = engine_for(exportable.artifact.format, config.engine)
    progress.update(1, 4, "compile")
    with TemporaryDirectory(prefix="rankline-export-") as directory:
        plan, about = _transform(exportable, config.uncompiled_operators, Path(directory))
        served, model = _in_engine(engine, exportable, Path(directory))
        progress.update(2, 4, "compare with NVTabular")
        parity = check_parity(
            exportable.offline_workflow,
            plan,
            exportable.model,
            exportable.heldout,
            served_model=model,
            candidates=exportable.candidates,
            trained_on=exportable.trained_on,
        )
        yield CheckedExport(
            exportable=exportable,
            plan=plan,
            uncompiled=about,
            served=served,
            model=model,
            parity=parity,
        )


@dataclass(frozen=True, kw_only=True)
class CheckedExport:
    """A served workflow and model whose results were compared with the originals."""

    exportable: Exportable
    plan: Transform
    uncompiled: Mapping[str, Any] | None
    served: Served
    model: ScoringModel
    parity: ParityReport

    def publish(self, output: Path, config: ExportConfig, *, name: str, promote: bool = True) -> ExportedEnsemble:
        exportable, candidates, engine = self.exportable, self.exportable.candidates, self.served.engine
        optional = optional_columns(self.plan, exportable.heldout, candidates, self.parity.nulls_not_compared)
        config = config.with_resolved_layout(optional, len(self.plan.inputs))
        details: dict[str, Any] = {
            "config": asdict(config),
            "engine": engine.name,
            "native": native_steps(self.plan, engine, config),
            "parity": asdict(self.parity),
            "uncompiled": self.uncompiled,
            **exportable.details,
            "tracking_uri": kept_uri(exportable.details["tracking_uri"], output),
        }
        if MADE_IN in details:
            details[MADE_IN] = os.path.relpath(details[MADE_IN], output.resolve())
        with (
            publish_version(
                output,
                name,
                made_from=exportable.made_from,
                details=details,
                keep=config.keep_versions,
                promote=promote,
            ) as version,
            quiet_nvtabular(),
        ):
            workflow = exportable.workflow
            transform = _TypedTransform(workflow, self.plan)
            scorer = exportable.model.operator(transform.compute_output_schema())
            graph = workflow.input_schema.column_names >> transform >> scorer
            Ensemble(graph, workflow.input_schema).export(
                str(version.directory),
                runtime=NativeRuntime(self.plan, self.served, type(scorer), candidates, optional),
                config=config,
                name=name,
                version=version.number,
            )
            if isinstance(exportable.artifact, TrainedModel):
                _check_unchanged(exportable.artifact)  # its files were read until now
        return ExportedEnsemble.load(output, version.number)


def _transform(
    exportable: Exportable, uncompiled: Sequence[str], directory: Path
) -> tuple[Transform, Mapping[str, Any] | None]:
    """Return the workflow in its served form. If it is not compiled, also return the names of its uncompiled operators
    and its latency per row.
    """
    workflow, columns = exportable.workflow, exportable.columns
    if not uncompiled:
        plan = compile_workflow(
            workflow,
            exportable.dtypes,
            exportable.candidates,
            columns,
            widths=exportable.widths,
            refuses_missing=exportable.refuses_missing,
        )
        return plan, None
    check_uncompiled(workflow, uncompiled)
    whole = UncompiledTransform.of(workflow, input_specs(workflow), exportable.dtypes, exportable.widths)
    whole.save(directory / "uncompiled")
    loaded = UncompiledTransform.load(directory / "uncompiled")  # as served, without functions of this process
    row_ms = check_batch_independence(loaded, exportable.heldout)
    return loaded, {"operators": list(uncompiled), "row_ms": row_ms}


def _in_engine(engine: Engine, exportable: Exportable, directory: Path) -> tuple[Served, ScoringModel]:
    """Return the model for an engine, converted in `directory` if the engine needs another format."""
    artifact, heads = exportable.artifact, exportable.heads
    if engine.format == artifact.format:
        return Served(engine=engine, path=artifact.model_path, heads=heads), exportable.model
    path = directory / engine.name / engine.format
    path.parent.mkdir()
    engine.convert(artifact, path)
    return Served(engine=engine, path=path, heads=heads), engine.load(path)


def optional_columns(
    plan: Transform, heldout: pa.Table, candidates: Collection[str], not_compared: Collection[str]
) -> tuple[str, ...]:
    """Return the raw columns that a request may omit, because the workflow fills their missing values.

    A column without missing values stays required, so that a forgotten column is an error; so do candidates, which
    determine the number of scores, and columns whose missing values could not be compared with NVTabular.
    """
    kept = {*candidates, *not_compared}
    names = [spec.name for spec in plan.inputs if spec.name not in kept and _is_lacking(heldout[spec.name])]
    return tuple(itertools.compress(names, _filled(plan, heldout, names)))


def _is_lacking(column: pa.ChunkedArray) -> bool:
    is_float = pa.types.is_floating(column.type)
    return bool(column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()))


def _filled(plan: Transform, heldout: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return one flag per column: whether the plan replaces its missing values, so that they never reach the model."""
    row = rows_of(plan.inputs, heldout, 1)
    first = pa.array(np.zeros(len(names), np.int64))
    columns = {name: row[name].combine_chunks().take(first) for name in row.column_names}
    for number, name in enumerate(names):
        columns[name] = pc.if_else(pa.array(np.arange(len(names)) != number), columns[name], None)
    lacking, flags = pa.table(columns), np.zeros(len(names), np.bool_)

    def runs(start: int, end: int) -> bool:
        try:
            made = plan.run(*plan_inputs(plan, lacking.slice(start, end - start)))
        except RequestError:
            return False
        flags[start:end] = ~out_of_range(made)
        return True

    rows_where(runs, len(names))
    return flags


class _TypedTransform(TransformWorkflow):  # type: ignore[misc]  # merlin has no annotations
    """A `TransformWorkflow` whose output schema has the dtypes of the plan, as merlin-systems requires."""

    def __init__(self, workflow: nvt.Workflow, plan: Transform) -> None:
        super().__init__(workflow)
        self._dtypes = {column.name: column.spec.numpy_dtype for column in plan.columns}

    def compute_output_schema(self, *_: Any, **__: Any) -> Schema:
        columns = self.workflow.output_schema.column_schemas
        return Schema([columns[name].with_dtype(dtype) for name, dtype in self._dtypes.items()])


class NativeRuntime(Runtime):  # type: ignore[misc]  # merlin has no annotations
    """A runtime that exports a merlin-systems graph as the steps of a native Triton ensemble."""

    def __init__(
        self,
        plan: Transform,
        served: Served,
        operator: type,
        candidates: Sequence[str] = (),
        optional: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._plan, self._served, self._operator = plan, served, operator
        self._candidates, self._optional = candidates, optional

    def export(
        self, ensemble: Ensemble, path: str, *, config: ExportConfig, name: str, version: int
    ) -> list[ModelConfig | EnsembleConfig]:
        """Write the files of a version, except for its manifest, to `path`."""
        ops = [node.op for node in postorder_iter_nodes(ensemble.graph.output_node)]
        wanted = (TransformWorkflow, self._operator)
        if any(sum(isinstance(op, kind) for op in ops) != 1 for kind in wanted):
            raise ExportError(
                f"the graph contains {[type(op).__name__ for op in ops]}, expected "
                f"{' >> '.join(kind.__name__ for kind in wanted)}."
            )
        return write_version(
            Path(path),
            self._plan,
            self._served,
            config,
            name=name,
            version=version,
            candidates=self._candidates,
            optional=self._optional,
        )


def _check_unchanged(artifact: PreparedData | TrainedModel) -> None:
    """Raise an error if another command replaced an artifact while its files were being read."""
    if (found := Manifest.read(artifact.path).fingerprint) != artifact.manifest.fingerprint:
        raise ArtifactError(
            f"{artifact.path} was replaced during the export: it had fingerprint {artifact.manifest.fingerprint[:12]} "
            f"and now has {found[:12]}. Export again when no other command uses the directory."
        )


def _check_same_origin(prepared: PreparedData, trained: TrainedModel) -> None:
    origin = trained.manifest.made_from.get(prepared.manifest.kind)
    if origin != prepared.manifest.fingerprint:
        raise ArtifactError(
            f"{trained.path} was trained on prepared data {str(origin)[:12]}, but the data in {prepared.path} is "
            f"{prepared.manifest.fingerprint[:12]}. Pass the data that the model was trained on, or train again."
        )
