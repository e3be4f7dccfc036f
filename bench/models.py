"""What the benchmarks of serving measure: a small model of generated ratings, exported our way and merlin-systems'."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rankline import pipeline
from rankline.display import Stages
from rankline.recipes import recipe_named
from rankline.source import SourceConfig
from rankline.workspace import Workspace
from serving.export_config import ExportConfig
from serving.merlin import Ensemble, PredictTensorflow, TransformWorkflow
from workflows.prepared import PreparedData
from workflows.trained import TrainedModel
from workflows.upstream import quiet_nvtabular

ROWS = 200_000


def make_model(workspace: Workspace, num_rows: int = ROWS) -> tuple[PreparedData, TrainedModel]:
    """Ratings, a model of one epoch, and their ensemble, all in `workspace`."""
    recipe = recipe_named(workspace.recipe)
    recipe = replace(recipe, train=replace(recipe.train, epochs=1))
    with Stages(["source", "prepare", "train", "export"]) as stages:
        prepared, _ = pipeline.prepare(recipe, SourceConfig(rows=num_rows), workspace, stages)
        pipeline.train(recipe, prepared, workspace, stages)
        pipeline.export(recipe, ExportConfig(), prepared, workspace, stages)
    return prepared, TrainedModel.load(workspace.model)


def serving_workflow(prepared: PreparedData) -> Any:
    """The NVTabular workflow without its label."""
    with quiet_nvtabular():
        return prepared.workflow().remove_inputs([prepared.spec.label.name])


def export_with_merlin(prepared: PreparedData, trained: TrainedModel, target: Path) -> None:
    """merlin-systems' own export; its ensemble is the model `executor_model`."""
    workflow = serving_workflow(prepared)
    target.mkdir()
    with quiet_nvtabular():
        names = workflow.input_schema.column_names
        graph = names >> TransformWorkflow(workflow) >> PredictTensorflow(str(trained.saved_model))
        Ensemble(graph, workflow.input_schema).export(str(target))
