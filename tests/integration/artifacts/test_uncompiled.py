"""A workflow with a LambdaOp, served through NVTabular where it is asked for by name."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rankline.serving.client import Client
from rankline.serving.export.config import ExportConfig
from rankline.serving.importers.export import export_foreign
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.in_process import open_ensemble
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import ArtifactError, ConfigError, LoweringError, ParityError, RequestError
from rankline.workflows.nvt.compat import ops
from rankline.workflows.nvt.io.workflow import save_workflow
from tests.factories.importable_models import LAYOUTS, expected, save_saved_model
from tests.oracles.nvtabular import fitted, transformed

OUTSIDE = Path(__file__).parent / "outside"
INPUTS = LAYOUTS["[rows, 1], lists padded, with lengths"]
ROWS = pd.DataFrame(
    {
        "user": ["x", "y", None, "é", "x"] * 10,
        "price": [0.5, np.nan, -3.25, 8.0, 2.0] * 10,
        "tags": [["a", "b"], [], ["c"], ["a", "a", "b"], ["d"]] * 10,
    }
)
SAMPLE = pa.Table.from_pandas(ROWS)
UNCOMPILED = ExportConfig(uncompiled="LambdaOp", max_batch_size=256)


@pytest.fixture(scope="module", autouse=True)
def functions() -> Iterator[Any]:
    """The package is on the path as an installed one is; Triton's side finds it there, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(OUTSIDE)
        yield importlib.import_module("shop_functions")


def graph(function: Callable[..., Any]) -> Callable[[], Any]:
    def make() -> Any:
        prices = ["price"] >> ops.FillMissing(1.0) >> ops.LambdaOp(function, dtype=np.float64)
        return prices + (["user", "tags"] >> ops.Categorify())

    return make


@pytest.fixture(scope="module")
def workflow(functions: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("uncompiled")
    save_workflow(fitted(graph(functions.doubled), ROWS, directory / "scratch"), directory / "workflow")
    return directory / "workflow"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_saved_model(INPUTS, tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture(scope="module")
def ensemble(workflow: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportedEnsemble:
    output = tmp_path_factory.mktemp("repository") / "mine"
    return export_foreign(model, SAMPLE, output, UNCOMPILED, name="mine", workflow=workflow)


@pytest.fixture(scope="module")
def scores(functions: Any, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    workflow = fitted(graph(functions.doubled), ROWS, tmp_path_factory.mktemp("again"))
    return expected(INPUTS, pd.DataFrame(transformed(workflow, ROWS)))


def test_uncompiled_workflow_scores_as_nvtabular_in_process(ensemble: ExportedEnsemble, scores: np.ndarray) -> None:
    with open_ensemble(ensemble) as client:
        np.testing.assert_allclose(client.predict(SAMPLE), scores, rtol=1e-5)


def test_uncompiled_workflow_scores_the_same_in_triton(ensemble: ExportedEnsemble, scores: np.ndarray) -> None:
    with EmbeddedServer(config_of(ensemble)) as server, Client(server.endpoints.grpc, "mine") as client:
        np.testing.assert_allclose(client.predict(SAMPLE), scores, rtol=1e-5)
        for number in range(5):
            alone = client.predict(SAMPLE.slice(number, 1))
            np.testing.assert_allclose(alone, scores[number : number + 1], rtol=1e-5)
        missing = SAMPLE.slice(0, 2).set_column(2, "tags", pa.array([None, ["a"]], pa.list_(pa.string())))
        with pytest.raises(RequestError, match="NVTabular cannot transform the rows"):
            client.predict(missing)
        np.testing.assert_allclose(client.predict(SAMPLE.slice(0, 1)), scores[:1], rtol=1e-5)


def test_uncompiled_operator_is_refused_unless_named(workflow: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(LoweringError, match="--uncompiled LambdaOp"):
        export_foreign(model, SAMPLE, tmp_path / "mine", ExportConfig(), name="mine", workflow=workflow)
    with pytest.raises(ConfigError, match=r"contains \['Categorify'\], expected only.*\['LambdaOp'\]"):
        config = ExportConfig(uncompiled="LambdaOp,Categorify")
        export_foreign(model, SAMPLE, tmp_path / "mine", config, name="mine", workflow=workflow)


def test_function_without_an_entry_point_is_not_called(model: Path, tmp_path: Path) -> None:
    save_workflow(fitted(graph(lambda column: column * 2), ROWS, tmp_path / "scratch"), tmp_path / "workflow")
    with pytest.raises(ArtifactError, match=r"LambdaOp on \['price'\] was saved with its code.*rankline\.functions"):
        export_foreign(model, SAMPLE, tmp_path / "mine", UNCOMPILED, name="mine", workflow=tmp_path / "workflow")
    live = fitted(graph(lambda column: column * 2), ROWS, tmp_path / "other")
    with pytest.raises(ArtifactError, match="was saved with its code"):
        export_foreign(model, SAMPLE, tmp_path / "mine", UNCOMPILED, name="mine", workflow=live)
    assert not (tmp_path / "mine").exists()


def test_function_that_depends_on_other_rows_is_refused(functions: Any, model: Path, tmp_path: Path) -> None:
    save_workflow(fitted(graph(functions.above_the_mean), ROWS, tmp_path / "scratch"), tmp_path / "workflow")
    with pytest.raises(ParityError, match="depends on the other rows in the batch"):
        export_foreign(model, SAMPLE, tmp_path / "mine", UNCOMPILED, name="mine", workflow=tmp_path / "workflow")
