"""A table of several hundred columns: relayed in part, served, and scored as it is without the relay."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from rankline.serving.client import Client
from rankline.serving.engines import engines
from rankline.serving.export.config import WIDE, ExportConfig
from rankline.serving.export.triton_version import Served, write_version
from rankline.serving.repository.ensemble import ExportedEnsemble, publish_version
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from rankline.workflows.core.errors import RequestError
from rankline.workflows.plan import ColumnSpec, Computed, TransformPlan
from rankline.workflows.schema.tensor_names import SCORE

NAMES = [f"x{number}" for number in range(WIDE + 20)]
DTYPES = {name: "int64" if number % 3 == 0 else "float32" for number, name in enumerate(NAMES)}
WEIGHTS = np.random.default_rng(0).normal(size=(len(NAMES), 1)).astype(np.float32)


def write_model(path: Path) -> None:
    """The sum of all columns, each times its weight."""
    kinds = {"int64": onnx.TensorProto.INT64, "float32": onnx.TensorProto.FLOAT}
    make = onnx.helper
    casts = [make.make_node("Cast", [name], [f"{name}.float"], to=onnx.TensorProto.FLOAT) for name in NAMES]
    graph = make.make_graph(
        [
            *casts,
            make.make_node("Concat", [f"{name}.float" for name in NAMES], ["all"], axis=1),
            make.make_node("MatMul", ["all", "weights"], [SCORE]),
        ],
        "wide",
        [make.make_tensor_value_info(name, kinds[DTYPES[name]], [None, 1]) for name in NAMES],
        [make.make_tensor_value_info(SCORE, onnx.TensorProto.FLOAT, [None, 1])],
        [onnx.numpy_helper.from_array(WEIGHTS, "weights")],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> ExportedEnsemble:
    directory = tmp_path_factory.mktemp("wide")
    write_model(directory / "model.onnx")
    plan = TransformPlan(
        inputs=tuple(ColumnSpec(name=name, dtype=DTYPES[name]) for name in NAMES),
        indexes=(),
        columns=tuple(Computed(name=name, source=name, dtype=DTYPES[name]) for name in NAMES),
    )
    served = Served(engine=engines()["onnx"], path=directory / "model.onnx")
    config = ExportConfig(max_batch_size=64)
    with publish_version(directory / "wide", "wide", made_from={}, details={}, keep=2) as version:
        write_version(
            version.directory, plan, served, config, name="wide", version=version.number, optional=[NAMES[-1]]
        )
    return ExportedEnsemble.load(directory / "wide")


@pytest.fixture(scope="module")
def server(ensemble: ExportedEnsemble) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config_of(ensemble)) as running:
        yield running


def rows(num_rows: int, seed: int) -> dict[str, NDArray[np.generic]]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-9, 9, num_rows).astype(dtype) for name, dtype in DTYPES.items()}


def expected(columns: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    sums: NDArray[np.float32] = np.stack(list(columns.values()), axis=1).astype(np.float32) @ WEIGHTS
    return sums[:, 0]


def test_wide_table_is_one_step_behind_a_relay(ensemble: ExportedEnsemble) -> None:
    assert ensemble.steps == ("wide_relay_v1", "wide_score_v1")
    ensemble.check_files()
    relayed = [tensor.name for tensor in ensemble.step_config("wide_relay_v1").input]
    assert len(relayed) == int(len(ensemble.model_config.input) ** 0.5)


@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_wide_table_scores_as_its_model(num_rows: int, server: EmbeddedServer) -> None:
    with Client(server.endpoints.grpc, "wide") as client, ThreadPoolExecutor(4) as pool:
        requests = [rows(num_rows, seed) for seed in range(8)]
        for scores, columns in zip(pool.map(client.predict, requests), requests, strict=True):
            np.testing.assert_allclose(scores, expected(columns), rtol=1e-4, atol=1e-3)


def test_wide_row_without_a_column_names_it_and_few_others(server: EmbeddedServer) -> None:
    columns = rows(1, seed=0)
    del columns[NAMES[0]]
    with (
        Client(server.endpoints.grpc, "wide") as client,
        pytest.raises(RequestError, match=r"missing columns \['x0'\]") as caught,
    ):
        client.predict(columns)
    assert len(str(caught.value)) < 400


def test_relayed_nan_stays_nan(ensemble: ExportedEnsemble, server: EmbeddedServer) -> None:
    relayed = [tensor.name for tensor in ensemble.step_config("wide_relay_v1").input]
    columns = rows(3, seed=0)
    columns[next(name for name in relayed if DTYPES[name] == "float32")][1] = np.nan
    with Client(server.endpoints.grpc, "wide") as client:
        assert np.isnan(client.predict(columns)).tolist() == [False, True, False]
