"""The services of `docker-compose.yml`, run as it says: see `tests.container_stack`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.container_stack import (
    CONTAINER,
    Network,
    Service,
    base_python,
    compose,
    dockerfile_stage,
    environment,
    need_program,
    overridden,
    triton_service,
)

pytest_plugins = ["tests.container_fixtures"]

DASHBOARD = json.loads((CONTAINER / "grafana/dashboards/serving.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def prometheus(stack: dict[str, Any], network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Prometheus, healthy."""
    need_program("wget", package="wget")
    program = need_program("prometheus", package="prometheus")
    service = Service(
        name="prometheus",
        compose=stack["services"]["prometheus"],
        entrypoint=[program],
        variables={"PATH": "/usr/bin"},
        volumes={"metrics": tmp_path_factory.mktemp("metrics")},
    )
    network.start(service)
    yield service
    network.stop(service)


QUERY = """
import json, sys, urllib.parse, urllib.request
for expression in json.load(sys.stdin):
    query = urllib.parse.urlencode({"query": expression})
    print(urllib.request.urlopen("http://prometheus:9090/api/v1/query?" + query).read().decode())
"""


def ask(network: Network, *expressions: str) -> list[list[dict[str, Any]]]:
    """The series that Prometheus finds for each expression; one that it cannot evaluate is an error."""
    answers = network.call(sys.executable, "-c", QUERY, stdin=json.dumps(expressions)).splitlines()
    return [json.loads(answer)["data"]["result"] for answer in answers]


def test_the_benchmark_runs_and_shows_in_every_panel(
    prometheus: Service, triton: Service, stack: dict[str, Any], network: Network
) -> None:
    bench = replace(triton, name="bench", compose=stack["services"]["bench"])
    done = network.run(bench, [*bench.command, "--batch-sizes", "64"])
    assert done.returncode == 0, done.stderr
    first, _, row, *_ = done.stdout.splitlines()
    assert first.startswith("movielens at triton:8001: AUC 0.")
    assert row.split()[0] == "64"
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions = [t["expr"].replace("$__rate_interval", "1m").replace("$model", ".*") for t in targets]
    deadline = time.monotonic() + 30
    while not all(series := ask(network, *expressions)):  # a rate needs two scrapes, 5 s apart
        missing = [expression for expression, found in zip(expressions, series, strict=True) if not found]
        assert time.monotonic() < deadline, f"no data: {missing}"
        time.sleep(0.5)
    names = {found["metric"]["model"].partition("_v")[0] for found in series[-1]}
    assert names == {"movielens", "movielens_transform", "movielens_predict"}
    assert ask(network, 'up{job="triton"}')[0][0]["value"][1] == "1"


def test_prometheus_configuration_has_no_fault() -> None:
    promtool = need_program("promtool", package="prometheus")
    checked = subprocess.run(
        [promtool, "check", "config", str(CONTAINER / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


ASK_WITH_TLS = """
import sys
from pathlib import Path
from serving.client import Client, ClientConfig, ClientTls
from workflows.errors import ServerError

with Client("triton:8001", "movielens", ClientConfig(tls=ClientTls(root=Path(sys.argv[1])))) as client:
    print(client.predict({"userId": [1], "movieId": [1]}).shape)
try:
    Client("triton:8001", "movielens")
except ServerError:
    print("refused")
"""


def test_grpc_is_encrypted_with_the_override(stack: dict[str, Any], context: Path, tmp_path: Path) -> None:
    openssl = need_program("openssl", package="openssl")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=triton", "-addext", "subjectAltName=DNS:triton"]
    subprocess.run(
        [openssl, *request, *names, "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=True
    )
    variables = {
        "RANKLINE_TLS_ADDRESS": "192.0.2.1",
        "RANKLINE_TLS_CERTIFICATE": str(certificate),
        "RANKLINE_TLS_KEY": str(key),
    }
    override = compose("docker-compose.tls.yml", **variables)
    secrets = {name: Path(secret["file"]) for name, secret in override["secrets"].items()}
    entry = overridden(stack["services"]["triton"], override["services"]["triton"])
    with Network(tmp_path) as network:
        service = triton_service(entry, context, secrets)
        network.start(service)
        asked = network.call(sys.executable, "-c", ASK_WITH_TLS, str(certificate))
        assert asked.splitlines() == ["(1,)", "refused"]
        assert "not encrypted" not in network.log(service)


@pytest.fixture(scope="module")
def mlflow(stack: dict[str, Any], network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """MLflow, healthy, on PostgreSQL, healthy."""
    path = tmp_path_factory.mktemp("tracking")
    (path / "data").mkdir()
    (path / "artifacts").mkdir()
    initdb = need_program("initdb", package="postgresql", directories=sorted(Path("/usr/lib/postgresql").glob("*/bin")))
    postgres = Service(
        name="postgres",
        compose=stack["services"]["postgres"],
        entrypoint=["postgres", "--listen_addresses=*"],  # the image's program, and what its configuration adds
        variables={"PATH": f"{Path(initdb).resolve().parent}:/usr/bin", "PGDATA": "/var/lib/postgresql/data"},
        volumes={"postgres": path / "data"},
    )
    initialise(network, postgres)
    network.start(postgres)
    stage = dockerfile_stage("mlflow")
    imports = "mlflow.cli, mlflow.server.fastapi_app, mlflow.store.tracking.sqlalchemy_store, psycopg2"
    venv, python = environment("requirements-mlflow.txt", imports=imports), base_python().parents[1]
    service = Service(
        name="mlflow",
        compose=stack["services"]["mlflow"],
        entrypoint=stage["ENTRYPOINT"],
        layers=[("--ro-bind", directory, str(directory)) for directory in (venv, python)],
        directory=stage["WORKDIR"],
        variables={"PATH": f"{venv / 'bin'}:/usr/bin", **stage["ENV"]},
        volumes={"artifacts": path / "artifacts"},
    )
    assert stage["USER"] == service.compose["user"]
    network.start(service)
    yield service
    network.stop(service)
    network.stop(postgres)


def initialise(network: Network, postgres: Service) -> None:
    """What the image does at its first start: a cluster, and the user with its database."""
    choices = postgres.compose["environment"]
    script = f"""
        initdb --username={choices["POSTGRES_USER"]} --pwfile=/dev/stdin {choices["POSTGRES_INITDB_ARGS"]}
        echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
        echo 'create database {choices["POSTGRES_DB"]};' | postgres --single -j postgres
    """
    done = network.run(postgres, ["sh", "-euc", script], stdin=f"{choices['POSTGRES_PASSWORD']}\n")
    assert done.returncode == 0, done.stderr


CLIENT = """
import mlflow, pathlib, sys, tempfile, urllib.error, urllib.request
from mlflow import MlflowClient

client = MlflowClient("http://mlflow:5000")
run = client.create_run(client.create_experiment("stack"))
client.log_param(run.info.run_id, "recipe", "movielens")
client.log_metric(run.info.run_id, "valid_auc", 0.8125)
with tempfile.TemporaryDirectory() as directory:
    (file := pathlib.Path(directory, "note.txt")).write_text("kept by the server")
    client.log_artifact(run.info.run_id, str(file), "notes")
client.set_terminated(run.info.run_id)

again = MlflowClient("http://mlflow:5000").get_run(run.info.run_id)
print(again.data.params, again.data.metrics, again.info.status, again.info.artifact_uri.partition("/")[0])
print(pathlib.Path(client.download_artifacts(run.info.run_id, "notes/note.txt")).read_text())
try:
    urllib.request.urlopen(urllib.request.Request("http://mlflow:5000/", headers={"Host": "rebound.example"}))
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_mlflow_keeps_runs_in_postgresql_and_hands_out_artifacts(mlflow: Service, network: Network) -> None:
    """By a client of this project's MLflow, which sees nothing of the server's files."""
    read = network.call(sys.executable, "-c", CLIENT).splitlines()
    assert read[-3:] == [  # MLflow has lines of its own
        "{'recipe': 'movielens'} {'valid_auc': 0.8125} FINISHED mlflow-artifacts:",
        "kept by the server",
        "403",  # a page in a browser on this machine cannot reach the server under another name
    ]
    kept = [file for file in mlflow.volumes["artifacts"].rglob("*") if file.is_file()]
    assert [file.name for file in kept] == ["note.txt"]
    query = ["psql", "--host=postgres", "--username=mlflow", "--tuples-only", "--no-align", "--command"]
    metrics = [
        "env",
        f"PGPASSWORD={mlflow.compose['environment']['PGPASSWORD']}",
        *query,
        "select key, value from metrics",
    ]
    assert network.call(*metrics).strip() == "valid_auc|0.8125"


def test_postgresql_asks_for_the_password(mlflow: Service, network: Network) -> None:
    asked = network.run(mlflow, ["env", "PGPASSWORD=wrong", "python3", "-c", CONNECT])
    assert "password authentication failed" in asked.stderr
    assert network.run(mlflow, ["python3", "-c", CONNECT]).returncode == 0


CONNECT = "import psycopg2; psycopg2.connect('postgresql://mlflow@postgres:5432/mlflow').close()"
