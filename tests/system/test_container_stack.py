"""The services of `docker-compose.yml`, run as it says (see `tests.system.containers`).

Triton's backends run under the Python of its images, with the packages of the Dockerfile; the model was trained and
exported by the Python and the TensorFlow of this process.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.engines import engine_for
from tests.support.deployment import CONTAINER, ROOT, allowed_files, compose, dockerfile_stage, overridden
from tests.support.programs import need_program
from tests.support.rounding import SCORE_ROUNDING
from tests.system.containers import (
    Exported,
    Network,
    Service,
    base_python,
    environment,
    plain_service,
    triton_service,
)
from workflows.upstream import nvt, quiet_nvtabular

DASHBOARD = json.loads((CONTAINER / "grafana/dashboards/serving.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Version 1, of engine tensorflow."""
    from rankline.recipes import recipe_named
    from training.tracking import TrackingConfig
    from training.train import train
    from workflows.datasets.movielens_generator import generate_movielens
    from workflows.prepare import prepare

    path, recipe = tmp_path_factory.mktemp("stack"), recipe_named("movielens")
    generate_movielens(path / "ratings", num_rows=5_000, seed=5)
    raw = recipe.dataset.read(path / "ratings")
    prepared = prepare(recipe.dataset, raw, path / "work/movielens/prepared", recipe.prepare, source="a test")
    tracking = TrackingConfig(directory=path / "mlflow", experiment="stack")
    trained = train(prepared.path, path / "model", replace(recipe.train, epochs=1), tracking=tracking)
    (path / "repository").mkdir()
    made = Exported(prepared=prepared, trained=trained, work=path / "work", repository=path / "repository")
    made.export()
    return made


@pytest.fixture(scope="module")
def stack(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The compose file for the exported ensemble; its passwords are of this test."""
    return compose(
        POSTGRES_PASSWORD="p@ss/word", GRAFANA_PASSWORD="unused",
        RANKLINE_REPOSITORY=str(exported.repository), RANKLINE_WORK=str(exported.work),
    )  # fmt: skip


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a build of the images sees it."""
    target = tmp_path_factory.mktemp("context")
    for name in allowed_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network")) as made:
        yield made


@pytest.fixture(scope="module")
def triton(stack: dict[str, Any], context: Path, network: Network) -> Service:
    """Triton with the ensemble, healthy."""
    service = triton_service(stack["services"]["triton"], context, {})
    network.start(service)
    return service


ASK = """
import json, sys
from pathlib import Path
from serving.client import Client
from workflows.prepared import PreparedData

prepared = PreparedData.load(Path(sys.argv[1]))
with Client("triton:8001", "movielens") as client:
    print(json.dumps(client.predict(prepared.heldout().select(list(prepared.inputs))).tolist()))
"""


def served_scores(network: Network, exported: Exported) -> list[float]:
    scores: list[float] = json.loads(network.call(sys.executable, "-c", ASK, str(exported.prepared.path)))
    return scores


@pytest.fixture(scope="module")
def offline_scores(exported: Exported) -> Any:
    """Of the same rows, by NVTabular and the TensorFlow that trained the model."""
    prepared, trained = exported.prepared, exported.trained
    with quiet_nvtabular():
        workflow = prepared.workflow().remove_inputs([label.name for label in prepared.spec.labels])
        rows = prepared.heldout().select(list(prepared.inputs)).to_pandas()
        frame = workflow.transform(nvt.Dataset(rows)).to_ddf().compute()
    return engine_for(trained.format).load_trained(trained.model_path).score_offline(frame)


def test_it_is_what_the_images_have(triton: Service, network: Network) -> None:
    script = """if True:
        import sys, importlib.util, tensorflow
        print(sys.version_info[:2] == (3, 12), [int(n) for n in tensorflow.__version__.split(".")[:2]] >= [2, 17])
        names = ("nvtabular", "merlin", "pandas", "torch", "pytriton")
        print([name for name in names if importlib.util.find_spec(name)])
    """
    assert network.run(triton, ["python3", "-c", script]).stdout.splitlines() == ["True True", "[]"]


def test_served_scores_are_the_offline_ones(
    triton: Service, network: Network, exported: Exported, offline_scores: Any
) -> None:
    served = served_scores(network, exported)
    assert np.std(offline_scores) > 0.01
    np.testing.assert_allclose(served, offline_scores, atol=SCORE_ROUNDING)


def test_a_version_with_the_engine_onnx_is_taken_over(
    triton: Service, network: Network, exported: Exported, offline_scores: Any
) -> None:
    """The server has the repository read-only, and looks for new versions."""
    exported.export("onnx")
    while "version 2 is active" not in network.log(triton):
        time.sleep(0.1)
    np.testing.assert_allclose(served_scores(network, exported), offline_scores, atol=SCORE_ROUNDING)


def test_a_plain_triton_with_the_native_backends_scores_alike(
    stack: dict[str, Any], exported: Exported, offline_scores: Any, tmp_path: Path
) -> None:
    name = "movielens"
    command = [
        f"--model-repository=/models/{name}", "--model-control-mode=explicit", f"--load-model={name}",
        "--exit-on-error=true", "--strict-readiness=true", "--allow-gpu-metrics=false",
    ]  # fmt: skip
    entry = {**stack["services"]["triton"], "command": command}
    with Network(tmp_path) as network:
        service = plain_service(entry, tmp_path / "backends")
        network.start(service)
        while "Started GRPCInferenceService" not in network.log(service):
            time.sleep(0.1)
        assert f"successfully loaded '{name}'" in network.log(service)
        np.testing.assert_allclose(served_scores(network, exported), offline_scores, atol=SCORE_ROUNDING)
        assert "python" not in network.log(service).lower()


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
    # A rate needs requests between two scrapes, which are 5 s apart, and on a busy machine more.
    while not all(series := ask(network, *expressions)):
        assert network.run(bench, [*bench.command, "--batch-sizes", "64"]).returncode == 0
    names = {found["metric"]["model"].partition("_v")[0] for found in series[-1]}
    assert names == {"movielens", "movielens_score"}
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
