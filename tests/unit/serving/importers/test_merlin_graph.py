"""Graphs of merlin-systems become ensembles as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from rankline.serving.engines.merlin_operators import ColumnSchema, Ensemble, Schema, TransformWorkflow, merlin_operator
from rankline.serving.export.config import ExportConfig
from rankline.serving.importers.export import export_foreign
from rankline.serving.importers.input_binding import Input
from rankline.serving.importers.merlin_graph import parts_of
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.in_process import open_ensemble
from rankline.workflows.core.errors import ExportError
from rankline.workflows.nvt.compat import nvt, ops
from tests.factories.importable_models import LISTS, expected, save_saved_model
from tests.oracles.nvtabular import fitted, transformed

INPUTS = (Input(name="user", dtype="int64", shape=(None,)), Input(name="price", dtype="float32", shape=(None,)))
ALL_INPUTS = (*INPUTS, *LISTS["values and offsets"])
ROWS = pd.DataFrame(
    {"user": [3, 1, 2, 3] * 5, "price": np.linspace(0, 4, 20), "tags": [["a"], ["b", "a"], [], ["c"]] * 5}
)
SAMPLE = pa.Table.from_pandas(ROWS)


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> nvt.Workflow:
    graph = lambda: (["user", "tags"] >> ops.Categorify()) + (["price"] >> ops.Normalize(out_dtype=np.float32))  # noqa: E731
    return fitted(graph, ROWS, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def encoded(workflow: nvt.Workflow) -> pd.DataFrame:
    return pd.DataFrame(transformed(workflow, ROWS))


def export(graph: Any, tmp_path: Path, *, uses: tuple[str, ...] = ("user", "price")) -> ExportedEnsemble:
    parts = parts_of(graph, SAMPLE, tmp_path)
    return export_foreign(parts.models, SAMPLE, tmp_path / "mine", ExportConfig(), name="mine", workflow=parts.workflow)


def test_merlin_ensemble_is_exported(workflow: nvt.Workflow, encoded: pd.DataFrame, tmp_path: Path) -> None:
    save_saved_model(ALL_INPUTS, tmp_path / "model")
    scorer = merlin_operator("tensorflow", "PredictTensorflow")(str(tmp_path / "model"))
    graph = Ensemble(workflow.input_schema.column_names >> TransformWorkflow(workflow) >> scorer, workflow.input_schema)
    with open_ensemble(export(graph, tmp_path)) as client:
        np.testing.assert_allclose(client.predict(SAMPLE), expected(ALL_INPUTS, encoded), rtol=1e-6)


def test_merlin_graph_of_several_models_has_an_output_for_each(
    workflow: nvt.Workflow, encoded: pd.DataFrame, tmp_path: Path
) -> None:
    predict = merlin_operator("tensorflow", "PredictTensorflow")
    save_saved_model(ALL_INPUTS, tmp_path / "one")
    save_saved_model(INPUTS, tmp_path / "two")
    features = workflow.input_schema.column_names >> TransformWorkflow(workflow)
    both = (features >> predict(str(tmp_path / "one"))) + (features >> predict(str(tmp_path / "two")))
    with open_ensemble(export(both, tmp_path)) as client:
        by_output = client.schema.by_output(client.predict(SAMPLE))
    assert set(by_output) == {"click_0", "click_1"}
    np.testing.assert_allclose(by_output["click_0"], expected(ALL_INPUTS, encoded), rtol=1e-6)
    np.testing.assert_allclose(by_output["click_1"], expected(INPUTS, encoded), rtol=1e-6)


class Linear(torch.nn.Module):
    """Takes a dictionary of columns, as merlin-systems hands it to a PyTorch model."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)
        self.dense = torch.nn.Linear(5, 1)

    def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.dense(torch.cat([self.table(columns["user"]), columns["price"].float()[:, None]], dim=1))


def test_merlin_graph_with_a_pytorch_module_is_exported(workflow: nvt.Workflow, tmp_path: Path) -> None:
    module = Linear().eval()
    part = fitted(lambda: (["user"] >> ops.Categorify()) + (["price"] >> ops.Normalize()), ROWS, tmp_path / "scratch")
    takes = Schema([ColumnSchema("user", dtype=np.int64), ColumnSchema("price", dtype=np.float64)])
    puts_out = Schema([ColumnSchema("score", dtype=np.float32)])
    scorer = merlin_operator("pytorch", "PredictPyTorch")(module, takes, puts_out)
    graph = ["user", "price"] >> TransformWorkflow(part) >> scorer
    made = pd.DataFrame(transformed(part, ROWS))
    columns = {name: torch.from_numpy(made[name].to_numpy()) for name in made}
    with open_ensemble(export(graph, tmp_path)) as client, torch.no_grad():
        np.testing.assert_allclose(
            client.predict(SAMPLE.select(["user", "price"])), module(columns).numpy()[:, 0], rtol=1e-5
        )


def test_merlin_graph_without_workflow_or_model_is_refused(workflow: nvt.Workflow, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the graph contains no model, expected PredictTensorflow or PredictPyTorch"):
        parts_of(["user"] >> TransformWorkflow(workflow), SAMPLE, tmp_path)
    two = (["user"] >> TransformWorkflow(workflow)) + (["price"] >> TransformWorkflow(workflow))
    with pytest.raises(ExportError, match=r"2 workflows, expected one\. Fit a single workflow instead: nvt\.Workflow"):
        parts_of(two, SAMPLE, tmp_path)
    with pytest.raises(
        ExportError, match=r"contains \['Categorify'\], expected only TransformWorkflow, PredictTensorflow"
    ):
        parts_of(["user"] >> ops.Categorify(), SAMPLE, tmp_path)


def test_models_that_take_one_column_differently_are_refused(workflow: nvt.Workflow, tmp_path: Path) -> None:
    save_saved_model(INPUTS, tmp_path / "one")
    save_saved_model((Input(name="user", dtype="int32", shape=(None, 1)), INPUTS[1]), tmp_path / "two")
    with pytest.raises(
        ExportError,
        match=r"declare the same input differently, as 'user' \(int64\[\?\]\) and 'user' \(int32\[\?, 1\]\)",
    ):
        models = [tmp_path / "one", tmp_path / "two"]
        export_foreign(models, SAMPLE, tmp_path / "mine", ExportConfig(), name="mine", workflow=workflow)
