"""The `tensorflow` backend inside a real server."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.client import Client
from serving.server import EmbeddedServer
from tests.support.tiny_models import TABLE_ROWS, columns, reasons_of_refusal, table_config, write_model
from workflows.errors import RequestError


def num_executions(server: EmbeddedServer, model: str) -> tuple[int, int]:
    """Requests that succeeded, and runs of the backend that it took."""
    with grpc.insecure_channel(server.endpoints.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stats = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=model)).model_stats[0]
    return stats.inference_stats.success.count, stats.execution_count


def test_runs_the_signature(client: Client) -> None:
    np.testing.assert_array_equal(client.predict(columns([[0, 1], [4], []], 2.0)), [22, 20000, 0])


def test_joined_requests_get_their_own_rows(client: Client, server: EmbeddedServer) -> None:
    requests = [columns([[i % TABLE_ROWS] * (1 + i % 3)] * (1 + i % 4), weight=i) for i in range(16)]
    expected = [[i * (1 + i % 3) * 10 ** (i % TABLE_ROWS)] * (1 + i % 4) for i in range(16)]
    before = num_executions(server, "table")
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(client.predict, requests))
    after = num_executions(server, "table")
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, want)
    assert after[0] - before[0] == 16
    assert after[1] - before[1] < 16


def test_a_request_with_a_long_list_is_not_joined_with_short_ones(client: Client) -> None:
    requests = [columns([[0] * 70_000]), *(columns([[1]], weight=i) for i in range(8))]
    with ThreadPoolExecutor(9) as pool:
        results = [result.tolist() for result in pool.map(client.predict, requests)]
    assert results == [[70_000], *([10 * i] for i in range(8))]


def test_a_bad_request_fails_alone(client: Client, server: EmbeddedServer) -> None:
    before = num_executions(server, "table")

    def ask(i: int) -> object:
        try:
            return client.predict(columns([[TABLE_ROWS if i == 3 else 1]], weight=i)).tolist()
        except RequestError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(8)))
    after = num_executions(server, "table")
    assert "is not in [0, 5)" in str(results[3])
    assert "\n" not in str(results[3])
    assert [result for i, result in enumerate(results) if i != 3] == [[10.0 * i] for i in range(8) if i != 3]
    assert after[1] - before[1] < 8  # they were joined before the bad one was found


def test_says_why_a_model_cannot_be_loaded(saved_model: Path, tmp_path: Path) -> None:
    for name, parameters in (
        ("missing", {}),
        ("damaged", {}),
        ("other_signature", {"TF_SIGNATURE_DEF": "predict"}),
        ("other_tag", {"TF_GRAPH_TAG": "train"}),
        ("other_type", {}),
        ("other_names", {}),
        ("bad_threads", {"INTRA_OP_THREADS": "many"}),
        ("bad_candidates", {"CANDIDATES": "ids__values,weight"}),
    ):
        version = write_model(tmp_path, table_config(name, **parameters), EDITS.get(name))
        if name != "missing":
            shutil.copytree(saved_model, version / "model.savedmodel")
    (tmp_path / "damaged" / "1" / "model.savedmodel" / "saved_model.pb").write_bytes(b"\xff not a SavedModel")
    reasons = reasons_of_refusal(tmp_path)
    assert not any("File " in reason or "At:" in reason for reason in reasons.values())
    assert "holds no SavedModel" in reasons["missing"]
    assert "cannot be loaded" in reasons["damaged"]
    assert "has no signature 'predict'. Available: ['serving_padded']" in reasons["other_signature"]
    assert "under the tag 'train'" in reasons["other_tag"]
    assert "has 'ids__nnzs' as int32, config.pbtxt says int64" in reasons["other_type"]
    assert "['ids__nnzs', 'ids__values', 'weight'], config.pbtxt says ['ids', 'ids__nnzs'" in reasons["other_names"]
    assert "INTRA_OP_THREADS is 'many'" in reasons["bad_threads"]
    assert "CANDIDATES names ['weight'], expected inputs of dims [-1]" in reasons["bad_candidates"]


def _take_int64(message: Any) -> None:
    message.input[1].data_type = message.input[0].data_type


def _rename(message: Any) -> None:
    message.input[0].name = "ids"


def _name_the_platform(message: Any) -> None:
    message.platform = "tensorflow_savedmodel"  # without it Triton refuses the config before the backend is asked


EDITS = {"missing": _name_the_platform, "other_type": _take_int64, "other_names": _rename}
