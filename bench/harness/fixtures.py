"""Test subjects of the benchmarks: prepared rows and a small model, exported by Rankline and by merlin-systems."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from rankline.api import pipeline
from rankline.api.data_source import SourceConfig
from rankline.recipes import Recipe, recipe_named
from rankline.recipes.workspace import Workspace
from rankline.serving.client import Client
from rankline.serving.engines.merlin_operators import Ensemble, TransformWorkflow, merlin_operator
from rankline.serving.export.config import ExportConfig
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.loadtest.runner import measure
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.terminal.console import Stages
from rankline.training.config.train import TrainConfig
from rankline.training.models.tabular import DLRMConfig
from rankline.workflows.core.errors import ServingError
from rankline.workflows.nvt.compat import quiet_nvtabular
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.feature_spec import HISTORY
from rankline.workflows.schema.model_artifact import TrainedModel

ROWS = 200_000
MERLIN_MODEL = "executor_model"
_CARDINALITY_SCALES = {"criteo": 0.01}  # for datasets whose ids would take gigabytes


def prepare_rows(workspace: Workspace, recipe: Recipe, num_rows: int) -> PreparedData:
    with Stages(["source", "prepare"]) as stages:
        return pipeline.prepare(recipe, _source(recipe, num_rows), workspace, stages)[0]


def make_model(
    workspace: Workspace, num_rows: int = ROWS, *, recipe: Recipe | None = None, small_layers: bool = False
) -> tuple[PreparedData, TrainedModel]:
    """Generate rows, train a model for one epoch, and export it, all in `workspace`.

    A recipe with rows of its own, from a file, is trained as it is. `small_layers` replaces the dense layers of the
    recipe with ones that take little of a step's time.
    """
    recipe = recipe or recipe_named(workspace.recipe)
    if recipe.dataset.generate is not None:
        config = with_small_layers(recipe.train) if small_layers else recipe.train
        recipe = replace(recipe, train=replace(config, epochs=1))
    with Stages(["source", "prepare", "train", "export"]) as stages:
        prepared, _ = pipeline.prepare(recipe, _source(recipe, num_rows), workspace, stages)
        pipeline.train(recipe, prepared, workspace, stages)
        pipeline.export(recipe, ExportConfig(), prepared, workspace, stages)
    return prepared, TrainedModel.load(workspace.model)


def with_small_layers(config: TrainConfig) -> TrainConfig:
    """Return the config with dense layers that take little of a step's time."""
    if isinstance(config.model, DLRMConfig):
        return config.with_choices(bottom_mlp=(64,), top_mlp=(64, 32))
    return config.with_choices(hidden=(64, 32))


def _source(recipe: Recipe, num_rows: int) -> SourceConfig:
    if recipe.dataset.generate is None:
        return SourceConfig()
    return SourceConfig(rows=num_rows, cardinality_scale=_CARDINALITY_SCALES.get(recipe.dataset.name, 1.0))


def serving_workflow(prepared: PreparedData) -> Any:
    with quiet_nvtabular():
        return prepared.workflow().remove_inputs([label.name for label in prepared.spec.labels])


def make_demo(directory: Path) -> tuple[PreparedData, ExportedEnsemble]:
    """Generate the demo's rows, train its model for one epoch, and export it, all in `directory`."""
    workspace = Workspace(recipe="movielens", root=directory, repository=directory / "ours")
    prepared, _ = make_model(workspace)
    return prepared, ExportedEnsemble.load(workspace.ensemble)


def usual_rows(recipe: str) -> int:
    """Return how many rows to generate. Rows with histories take longer, so there are fewer of them."""
    return ROWS // 10 if has_histories(recipe) else ROWS


def has_histories(recipe: str) -> bool:
    return recipe_named(recipe).dataset.sequence is not None


def request_rows(prepared: PreparedData) -> pa.Table:
    """Return raw held-out rows as a client sends them, in one chunk; histories are repeated to full length."""
    rows = prepared.heldout().select(list(prepared.inputs)).combine_chunks()
    history = prepared.spec.metadata.history
    if history is None:
        return rows
    length = max(feature.max_length or 0 for feature in prepared.spec.channel(HISTORY))
    lists = rows[history].combine_chunks()
    counts, offsets = lists.value_lengths().to_numpy(), lists.offsets.to_numpy()
    # Count from the end, so that the latest items stay last.
    places = (offsets[1:] - 1)[:, None] - np.arange(length)[::-1] % counts[:, None]
    full = pa.ListArray.from_arrays(np.arange(len(rows) + 1) * length, lists.values.take(pa.array(places.ravel())))
    return rows.set_column(rows.column_names.index(history), history, full)


def merlin_rows(rows: pa.Table) -> pa.Table:
    """Return raw rows in a form that merlin-systems' export accepts, which cannot represent missing values.

    Criteo's workflow treats 0 like a missing number, and an empty string like a missing category.
    """
    return pa.table(
        {
            name: pc.fill_null(rows[name], "" if pa.types.is_string(rows[name].type) else 0)
            if rows[name].null_count
            else rows[name]
            for name in rows.column_names
        }
    )


def infer_request(model: str, columns: Mapping[str, npt.NDArray[Any]], row_shape: tuple[int, ...] = ()) -> bytes:
    """Return the serialized bytes of a request, built without a client library."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, values in columns.items():
        shape = values.shape if values.ndim > 1 else (len(values), *row_shape)
        request.inputs.add(name=name, datatype=np_to_triton_dtype(values.dtype), shape=shape)
        raw = serialize_byte_tensor(values).item() if values.dtype.hasobject else values.tobytes()
        request.raw_input_contents.append(raw)
    return request.SerializeToString()  # type: ignore[no-any-return]


def peak_per_s(client: Client, rows: pa.Table, expected: npt.NDArray[Any], seconds: float = 5.0) -> float:
    """Return the highest rate of one-row requests at which no queue grows."""
    search = LoadConfig(slo="p99=100ms", min_duration_s=seconds)
    found = (measure(client, rows, [1], config=search, expected=expected).searches or {})[1]
    if found.rate_per_s is None:
        raise ServingError(f"the server did not answer even one request per second in time. {found.ended}")
    return found.rate_per_s


def export_with_merlin(prepared: PreparedData, trained: TrainedModel, target: Path) -> None:
    """Export with merlin-systems; its ensemble is the model `MERLIN_MODEL`."""
    workflow = serving_workflow(prepared)
    target.mkdir()
    with quiet_nvtabular():
        names = workflow.input_schema.column_names
        scorer = merlin_operator("tensorflow", "PredictTensorflow")(str(trained.saved_model))
        graph = names >> TransformWorkflow(workflow) >> scorer
        Ensemble(graph, workflow.input_schema).export(str(target))
