"""Labels of every task at once: trained, exported, scored in this process and by a server, one output for each."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.serving.client import Client, ClientConfig
from rankline.serving.export.config import ExportConfig
from rankline.serving.export.exporter import export_ensemble
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer, ServerConfig
from rankline.serving.server.in_process import open_ensemble
from rankline.training.config.train import TrainConfig
from rankline.training.evaluation import score_heads
from rankline.training.models import MODELS
from rankline.training.run.train import train
from rankline.training.tracking import TrackingConfig
from rankline.workflows.compiler.expressions import Columns, apply
from rankline.workflows.compiler.operators import LOWERINGS
from rankline.workflows.compiler.operators.continuous import lower_normalize
from rankline.workflows.core.errors import ParityError
from rankline.workflows.nvt.compat import nvt, ops
from rankline.workflows.plan.steps import Arithmetic
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.model_artifact import TrainedModel
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head

pytestmark = pytest.mark.slow

HEADS = (Head("click"), Head("price, €?", REGRESSION, weight=2.0), Head("kind of", MULTICLASS, ("r", "g", "b é")))
INPUTS = ("shop", "x")
EXPORTS = {"mlp": None, "mlp_onnx": "onnx", "torch_mlp": None, "torch_mlp_onnx": "onnx", "lightgbm": None}
"""Name of the ensemble → engine."""


def shop_graph(*_: object) -> nvt.Workflow:
    labels = [head.column for head in HEADS]
    return nvt.Workflow((["shop"] >> ops.Categorify()) + (["x"] >> ops.Normalize()) + labels)


def rows() -> pa.Table:
    rng = np.random.default_rng(0)
    shop, x = rng.integers(0, 30, 2_000), rng.normal(size=2_000).astype(np.float32)
    click = ((shop % 2 == 0) ^ (rng.random(2_000) < 0.1)).astype(np.float32)
    price = pa.array((1_000 + 100 * x).astype(np.float32), mask=rng.random(2_000) < 0.3)
    return pa.table(
        {"shop": shop, "x": x, "click": click, "price, €?": price, "kind of": (shop % 3).astype(np.float32)}
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    dataset = Dataset(name="shop", read=lambda _: raw, graph=shop_graph, inputs=INPUTS, heads=HEADS)
    raw = RawData(rows=rows(), fingerprint="shop")
    return prepare(dataset, raw, tmp_path_factory.mktemp("heads") / "prepared", source="made up")


@pytest.fixture(scope="module")
def ensembles(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedEnsemble]:
    directory = tmp_path_factory.mktemp("ensembles")
    tracking = TrackingConfig(directory=directory, experiment="heads")
    trained = {
        model: train(
            prepared,
            directory / model,
            TrainConfig(model=MODELS[model](), epochs=2, batch_size=64, learning_rate=3e-3),
            tracking=tracking,
        )
        for model in ("mlp", "torch_mlp", "lightgbm")
    }
    return {
        name: export_ensemble(
            prepared,
            trained[name.removesuffix("_onnx")],
            directory / f"{name}-repository",
            ExportConfig(engine=engine, fused=name == "lightgbm"),
            name=name,
        )
        for name, engine in EXPORTS.items()
    }


@pytest.fixture(scope="module")
def server(ensembles: dict[str, ExportedEnsemble]) -> Iterator[EmbeddedServer]:
    repositories = tuple(ensemble.path for ensemble in ensembles.values())
    with EmbeddedServer(ServerConfig(repositories=repositories, http_port=0)) as server:
        yield server


@pytest.mark.parametrize("name", EXPORTS)
def test_heads_are_outputs_on_which_server_and_process_agree(
    name: str, ensembles: dict[str, ExportedEnsemble], server: EmbeddedServer, prepared: PreparedData
) -> None:
    heldout = prepared.heldout()
    asked = heldout.select(list(INPUTS))
    with open_ensemble(ensembles[name]) as client:
        assert {output.name: output.dims for output in client.schema.outputs} == {
            "click": (1,),
            "kind of": (3,),
            "price, €?": (1,),
        }
        here = client.predict(asked)
    with Client(server.endpoints.grpc, name) as client:
        served = client.predict(asked)
        outputs, columns = client.schema.by_output(served), client.schema.score_columns(served)
        assert client.predict(asked.slice(0, 0)).shape == (0, 5)
    np.testing.assert_allclose(served, here, rtol=1e-5, atol=1e-6)
    assert list(columns) == list(client.schema.score_names)
    assert {"score_click", "score_price, €?", "score_kind of_r", "score_kind of_b é"} <= columns.keys()
    in_order = np.concatenate([outputs[head.column].reshape(len(asked), -1) for head in HEADS], axis=1)
    labels = np.column_stack([heldout[head.column].to_numpy() for head in HEADS])
    figures = score_heads(prepared.spec.heads, labels, in_order)
    offline = ensembles[name].offline_metrics
    assert figures == pytest.approx({n.removeprefix("valid_"): offline[n] for n in offline if n != "epoch"}, rel=1e-3)
    assert 500 < outputs["price, €?"].mean() < 1_500
    np.testing.assert_allclose(outputs["kind of"].sum(axis=1), 1, rtol=1e-5)


def test_operator_changed_since_the_data_was_prepared_is_refused(
    prepared: PreparedData, ensembles: dict[str, ExportedEnsemble], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = TrainedModel.load(ensembles["mlp"].path.parent / "mlp")
    before = ops.Normalize.transform

    def transform(self: ops.Normalize, selector: nvt.ColumnSelector, rows: pd.DataFrame) -> pd.DataFrame:
        return before(self, selector, rows) * 2

    def lower(op: ops.Normalize, selector: nvt.ColumnSelector, columns: Columns) -> Columns:
        twice = Arithmetic(function="multiply", operand=2.0)
        return {name: apply(twice, column) for name, column in lower_normalize(op, selector, columns).items()}

    monkeypatch.setattr(ops.Normalize, "transform", transform)
    monkeypatch.setitem(LOWERINGS, ops.Normalize, lower)
    with pytest.raises(ParityError, match=r"column 'x' differs: .* was .* when the data was prepared, but is .* now"):
        export_ensemble(prepared, trained, tmp_path / "repository", ExportConfig(), name="heads")
    assert not (tmp_path / "repository").exists()


def test_http_has_all_outputs(server: EmbeddedServer, prepared: PreparedData) -> None:
    asked = prepared.heldout().select(list(INPUTS))
    with Client(server.endpoints.grpc, "mlp") as client:
        expected = client.predict(asked)
    with Client(server.endpoints.http, "mlp", ClientConfig(transport="http")) as client:
        np.testing.assert_array_equal(client.predict(asked), expected)
