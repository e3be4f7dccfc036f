"""Ensembles as deployments, through MLflow's own command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from mlflow.deployments import get_deploy_client
from mlflow.deployments.cli import commands
from mlflow.exceptions import MlflowException

from rankline.registry.activation import register
from rankline.serving.client import Client
from rankline.serving.repository.ensemble import ExportedEnsemble, active_version
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import config_of
from tests.factories.ensembles import NAME, damage
from tests.harness.process.waiting import wait_until, wait_until_ended
from tests.unit.rankline.conftest import Store, exported

Typed = Callable[..., Result]


@pytest.fixture
def origin(store: Store, nothing_registered: None, tmp_path: Path) -> Path:
    """Two registered versions, which answer key i with 10 + i and 20 + i."""
    path = tmp_path / "origin" / NAME
    path.parent.mkdir()
    for offset in (10, 20):
        register(exported(store, path.parent, offset), store.uri)
    return path


@pytest.fixture
def typed(origin: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """`mlflow deployments` with a repository elsewhere."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)

    def typed(verb: str, *arguments: str, target: str = f"rankline:{tmp_path / 'elsewhere'}") -> Result:
        return CliRunner().invoke(commands, [verb, "-t", target, *arguments])

    return typed


def said(result: Result) -> str:
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    return result.output


def refused(result: Result) -> str:
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)  # no traceback
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    return result.output


def test_registered_version_is_deployed_updated_described_and_asked(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / NAME
    assert f"{NAME} is created" in said(typed("create", "--name", NAME, "-m", f"models:/{NAME}/1"))
    assert active_version(path, NAME) == 1
    assert "already exists" in refused(typed("create", "--name", NAME, "-m", f"models:/{NAME}/2"))
    said(typed("update", "--name", NAME, "-m", f"models:/{NAME}@champion"))
    assert active_version(path, NAME) == 2
    assert f"'name': '{NAME}'" in said(typed("list"))
    described = said(typed("get", "--name", NAME))
    assert "version: 2" in described
    assert "others: [1]" in described
    client = get_deploy_client(f"rankline:{tmp_path / 'elsewhere'}")
    records, columns = [{"x": 1, "y": "a"}, {"x": 3, "y": "b"}], {"x": [1, 3]}
    split = {"columns": ["x"], "data": [[1], [3]]}
    (tmp_path / "rows.json").write_text(json.dumps(records))
    scored = said(typed("predict", "--name", NAME, "-I", str(tmp_path / "rows.json")))
    assert json.loads(scored)["score"] == {"0": 21, "1": 23}
    for rows in (records, columns, split, {"dataframe_split": split}, {"dataframe_records": records}):
        assert list(client.predict(NAME, rows)["score"]) == [21, 23]
    assert list(client.predict(NAME, {"x": 3})["score"]) == [23]
    timed = client.predict(NAME, {"x": "1970-01-01T00:00:00.000003Z"})  # in microseconds
    assert timed.to_dict("records") == [{"x": "1970-01-01T00:00:00.000003Z", "score": 23}]


def test_empty_directory_holds_no_deployments_and_a_path_is_no_name(typed: Typed, tmp_path: Path) -> None:
    assert "[]" in said(typed("list"))
    for name in ("", ".", "..", "a/b"):
        assert f"the deployment name is {name!r}" in refused(typed("create", "--name", name, "-m", f"models:/{NAME}/1"))
        assert f"does not contain ensemble {name!r}" in refused(typed("get", "--name", name))


def test_export_of_a_run_is_deployed_and_a_server_is_asked(typed: Typed, origin: Path) -> None:
    first = ExportedEnsemble.load(origin, 1)
    target = f"rankline:{origin.parent}"
    said(typed("update", "--name", NAME, "-m", f"runs:/{first.run_id}/model", target=target))
    assert active_version(origin, NAME) == 1
    with EmbeddedServer(config_of(first)) as server:
        client = get_deploy_client(target)
        scored = client.predict(NAME, pd.DataFrame({"x": [2]}), endpoint=server.endpoints.grpc)
    assert list(scored["score"]) == [12]


@pytest.mark.slow
def test_deployment_is_served_from_mlflow_until_ctrl_c(origin: Path, store: Store, tmp_path: Path) -> None:
    program = (
        "import signal; from mlflow.cli import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what a shell starts in the background ignores it
        "cli()"
    )
    options = ["-t", "rankline", "--name", NAME, "-m", f"models:/{NAME}/1", "-C", f"repository={origin.parent}"]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "deployments", "run-local", *options],
            env={**os.environ, "MLFLOW_TRACKING_URI": store.uri},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    wait_until(lambda: "press Ctrl-C to stop" in log.read_text() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    servers = psutil.Process(process.pid).children(recursive=True)
    url = log.read_text().partition("gRPC ")[2].split(";")[0]
    with Client(url, NAME) as client:
        assert list(client.predict(pa.table({"x": [2]}))) == [12]  # version 1, where 2 was active
    process.send_signal(signal.SIGINT)
    assert process.wait() == 1
    assert "Traceback" not in log.read_text()
    assert servers
    wait_until_ended(servers)


def test_undeployable_model_is_refused_and_the_active_version_stays(typed: Typed, origin: Path, tmp_path: Path) -> None:
    create = ("create", "--name", NAME, "-m")
    assert "expected models:/NAME/VERSION or runs:/RUN_ID" in refused(typed(*create, "s3://bucket/model"))
    assert f"expected models:/{NAME}/VERSION" in refused(typed(*create, "models:/other/1"))
    assert f"models:/{NAME}/9 cannot be looked up" in refused(typed(*create, f"models:/{NAME}/9"))
    assert "unknown option engine" in refused(typed(*create, f"models:/{NAME}/1", "-C", "engine=onnx"))
    assert "does not exist" in refused(typed(*create, "runs:/0123", "-C", f"work_dir={tmp_path}"))
    assert not (tmp_path / "elsewhere" / NAME).exists()
    at_origin = f"rankline:{origin.parent}"
    assert "does not contain ensemble 'other'" in refused(typed("get", "--name", "other", target=at_origin))
    with pytest.raises(MlflowException, match="does not contain ensemble 'other'"):
        get_deploy_client(at_origin).get_deployment("other")
    assert "servers may be using it" in refused(typed("delete", "--name", NAME, target=at_origin))
    damage(ExportedEnsemble.load(origin, 1), "predict")
    assert refused(typed("update", "--name", NAME, "-m", f"models:/{NAME}/1", target=at_origin))
    assert active_version(origin, NAME) == 2
