"""docs/guide/containers.md on a real container engine: its commands, word for word, and what only an engine shows."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import psutil
import pyarrow as pa
import pytest
import yaml
from mlflow import MlflowClient

from bench.serving import stack as bench_stack
from rankline.serving.client import Client, ClientConfig, ClientTls
from rankline.serving.engines import engine_for
from rankline.serving.repository.ensemble import ExportedEnsemble
from rankline.serving.server.ports import choose_ports
from rankline.workflows.core.errors import ServerError
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.harness.commands.command_line import RANKLINE, commands, typed
from tests.harness.containers.deployment import CONTAINER, ROOT, allowed_files
from tests.harness.process.programs import need_program
from tests.harness.process.waiting import wait_until
from tests.oracles.bench_reports import check_report
from tests.oracles.tolerance import SCORE_ROUNDING

_UNAVAILABLE = 69
_SAY_HOW = 'echo "$DOCKER_HOST"; echo "$DOCKER_CONFIG"; echo "$PATH"; exec cat'


@contextmanager
def container_engine() -> Iterator[Mapping[str, str]]:
    """The environment in which `docker` and `docker compose` speak to it.

    Skips the test, with the reason, where there is none.

    One that was started ends with the `with` block or with this process, since it ends when it can read no more.
    """
    command = [str(ROOT / "scripts/container-engine.sh"), "sh", "-c", _SAY_HOW]
    variables = {"DOCKER_HOST": "", "DOCKER_CONFIG": "", **os.environ}
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        said = [running.stdout.readline().strip() for _ in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH")]
        if not said[-1]:
            _, reason = running.communicate()
            if running.returncode == _UNAVAILABLE:
                pytest.skip(reason.strip())
            raise AssertionError(f"scripts/container-engine.sh ended with {running.returncode}: {reason}")
        chosen = zip(("DOCKER_HOST", "DOCKER_CONFIG", "PATH"), said, strict=True)
        try:
            yield {**os.environ, **{name: value for name, value in chosen if value}}
        finally:
            running.communicate()


# Without images in the cache, the first test builds them from packages of some gigabytes.
pytestmark = [pytest.mark.in_order, pytest.mark.timeout(2400)]

DOCUMENT = (ROOT / "docs/guide/containers.md").read_text(encoding="utf-8")
BENCH = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["bench"]
SHORTER = {
    "MLFLOW_TRACKING_URI": "--epochs 1",
    "rankline run": "--rows 5000 --epochs 1 --batch-sizes 64",
    "docker compose --profile bench run": " ".join(
        [*(word.replace("${RANKLINE_RECIPE:-movielens}", "movielens") for word in BENCH["command"]), "--batch-sizes 64"]
    ),
}
ROW = {"userId": [1], "movieId": [31]}
DASHBOARD = json.loads((CONTAINER / "grafana/dashboards/serving.json").read_text(encoding="utf-8"))


def documented(section: str) -> list[str]:
    """The commands under a heading of the document; "" for those before the first."""
    first, *others = DOCUMENT.split("\n## ")
    parts = {"": first, **{part.partition("\n")[0]: part for part in others}}
    return [command.partition(" # ")[0].strip() for command in commands(parts[section])]


@dataclass
class Stack:
    """A copy of the project, with model_repository, work and .env, from which the stack is started.

    `ports` are by the middle of their variable's name, and `said` is what the document's first commands said.
    """

    path: Path
    environment: Mapping[str, str]
    services: tuple[str, ...] = ()
    ports: dict[str, int] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def choose(self, **more: str) -> None:
        """Write .env as the document says, with free ports and further variables."""
        self.ports.update(choose_ports(GRPC=0, MLFLOW=0, GRAFANA=0, TLS=0))
        given = {f"RANKLINE_{name}_PORT": str(port) for name, port in self.ports.items()}
        text = re.sub(r"PASSWORD=$", "PASSWORD=p@ss/word", (ROOT / ".env.example").read_text(), flags=re.MULTILINE)
        lines = [f"{name}={value}" for name, value in {**given, **more}.items()]
        (self.path / ".env").write_text("\n".join([text, *lines, ""]))

    def run(self, command: str, *, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """A command as a person types it; the ports of the document are this stack's."""
        command = command.replace("127.0.0.1:8001", self.grpc).replace(":5000", f":{self.ports['MLFLOW']}")
        more = next((more for begin, more in SHORTER.items() if command.startswith(begin)), "")
        if " up " in command:
            more = " ".join(self.services)
        if command.startswith("rankline ") and "rankline image" not in command:  # which needs the engine
            return subprocess.CompletedProcess(command, 0, typed(f"{command} {more}", self.path), "")
        done = subprocess.run(
            ["bash", "-c", f"{command} {more}"],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def inside(self, service: str, script: str, *, check: bool = True) -> str:
        """What a shell in a service's container says."""
        quoted = script.replace("'", "'\\''")
        return self.run(f"docker compose exec -T {service} sh -c '{quoted}' 2>&1", check=check).stdout.strip()

    def state(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        found: dict[str, Any] = json.loads(self.run(f"docker inspect $(docker compose ps -aq {service})").stdout)[0]
        return found

    def is_healthy(self, service: str) -> bool:
        return bool(self.state(service)["State"]["Health"]["Status"] == "healthy")

    def log(self, service: str) -> str:
        return self.run(f"docker compose logs --no-log-prefix {service} 2>&1").stdout

    @property
    def grpc(self) -> str:
        """HOST:PORT of Triton."""
        return f"127.0.0.1:{self.ports['GRPC']}"


def copy_of_the_project(path: Path) -> Path:
    """What the commands of the document need of a checkout."""
    others = (
        ".dockerignore",
        ".env.example",
        "docker-compose.yml",
        "docker-compose.tls.yml",
        "serving/deploy/Dockerfile",
    )
    for name in (*allowed_files(), *others):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path / name)
    for name in ("prometheus.yml", "grafana"):
        copy = shutil.copytree if (CONTAINER / name).is_dir() else shutil.copy
        copy(CONTAINER / name, path / "serving/deploy" / name)
    return path


@pytest.fixture(scope="module")
def engine() -> Iterator[Mapping[str, str]]:
    """The environment of an engine that has the images which the stack is built on."""
    with container_engine() as found:
        environment = {name: value for name, value in found.items() if not name.startswith(("MAKE", "RANKLINE"))}
        subprocess.run([str(ROOT / "scripts/base-images.sh")], env=environment, check=True)
        environment["PATH"] = f"{RANKLINE.parent}:{environment['PATH']}"
        environment["COMPOSE_PROJECT_NAME"] = "rankline-test"
        yield environment
        left = "docker compose -p {0} down --volumes --timeout 1"
        for project in ("rankline-test", "rankline-second"):
            subprocess.run(left.format(project).split(), env=environment, cwd=ROOT, capture_output=True, check=False)


@pytest.fixture(scope="module")
def stack(engine: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """After the commands at the top of the document."""
    made = Stack(copy_of_the_project(tmp_path_factory.mktemp("stack")), engine)
    first, copying, *others = documented("")
    assert copying == "cp .env.example .env"
    made.choose(RANKLINE_TRITON_MEMORY="1500m")
    images = made.run(
        "docker compose config --images && docker images --format '{{.Repository}}:{{.Tag}}'"
    ).stdout.split()
    made.services = tuple(
        name for name in made.run("docker compose config --services").stdout.split()
        if name != "grafana" or images.count("grafana/grafana:13.2.3") > 1
    )  # fmt: skip
    made.path.parent.chmod(0o755)
    made.run(first)
    for command in others:
        made.said.append(made.run(command).stdout)
    return made


@pytest.fixture(scope="module")
def rows(stack: Stack) -> pa.Table:
    """The held-out rows."""
    prepared = PreparedData.load(stack.path / "work/movielens/prepared")
    return prepared.heldout().select(list(prepared.inputs))


@pytest.fixture(scope="module")
def offline_scores(stack: Stack, rows: pa.Table) -> Any:
    """Of the same rows, by NVTabular and the TensorFlow that trained the model."""
    prepared = PreparedData.load(stack.path / "work/movielens/prepared")
    trained = TrainedModel.load(stack.path / "work/movielens/model")
    with quiet_nvtabular():
        workflow = prepared.workflow().remove_inputs([label.name for label in prepared.spec.labels])
        frame = workflow.transform(nvt.Dataset(rows.to_pandas())).to_ddf().compute()
    return engine_for(trained.format).load_trained(trained.model_path).score_offline(frame)


def test_documents_commands_score_and_measure(stack: Stack, rows: pa.Table, offline_scores: Any) -> None:
    predicted, benched = stack.said[-2:]
    with Client(stack.grpc, "movielens") as client:
        np.testing.assert_allclose(client.predict(rows), offline_scores, atol=SCORE_ROUNDING)
        assert json.loads(predicted)["score"] == pytest.approx(float(client.predict(ROW)[0]), abs=SCORE_ROUNDING)
    # What `docker compose run` says of an image that it builds first comes before.
    _, _, row, *_ = benched[benched.index("movielens at triton:8001: AUC 0.") :].splitlines()
    assert row.split()[0] == "64"


def test_image_holds_nothing_but_what_it_needs(stack: Stack) -> None:
    assert stack.inside("triton", "command -v python3", check=False) == ""
    assert "cuda" not in stack.inside("triton", "find / -xdev -name 'libcu*' ! -name 'libcudart*' ! -name 'libcurl*'")
    size = int(stack.run("docker image inspect --format '{{.Size}}' rankline-triton").stdout)
    assert size < 1_000_000_000
    bill = json.loads(stack.inside("triton", "cat /opt/rankline/sbom.cdx.json"))
    listed = {file["name"]: file["hashes"] for part in bill["components"] for file in part["components"]}
    hashes = stack.inside("triton", "find / -xdev -type f -not -path '/etc/host*' | xargs sha256sum").splitlines()
    found = {path: [{"alg": "SHA-256", "content": digest}] for digest, path in map(str.split, hashes)}
    made_by_the_engine = {"/.dockerenv", "/sbin/docker-init", "/etc/resolv.conf", "/opt/rankline/sbom.cdx.json"}
    assert {path: found[path] for path in found.keys() - made_by_the_engine} == listed
    bought = {part["name"] for part in bill["components"] if part.get("purl", "").startswith("pkg:pypi")}
    assert bought == {"onnxruntime", "tensorflow-cpu"}


def test_dashboard_panels_have_data(stack: Stack) -> None:
    """A rate needs requests between two scrapes."""
    targets = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions = [t["expr"].replace("$__rate_interval", "1m").replace("$model", ".*") for t in targets]
    with Client(stack.grpc, "movielens") as client:
        wait_until(lambda: bool(client.predict(ROW).size) and all(map(partial(found, stack), expressions)))
    assert found(stack, 'up{job="triton"}')[0]["value"][1] == "1"


def found(stack: Stack, expression: str) -> list[dict[str, Any]]:
    """The series that Prometheus finds; one that it cannot evaluate is an error."""
    address = "http://127.0.0.1:9090/api/v1/query?" + urlencode({"query": expression})
    answer = json.loads(stack.inside("prometheus", f"wget -qO- '{address}'"))
    series: list[dict[str, Any]] = answer["data"]["result"]
    return series


# What each may do, seen from inside

USERS = {"triton": 1000, "mlflow": 1000, "postgres": 999, "prometheus": 65534, "grafana": 472}
VOLUMES = {
    "triton": "/var/lib/rankline",
    "mlflow": "/artifacts",
    "postgres": "/var/lib/postgresql",
    "prometheus": "/prometheus",
}


def test_services_have_no_rights_and_a_read_only_root(stack: Stack) -> None:
    for service in stack.services:
        assert stack.inside(service, "id -u") == str(USERS[service])
        status = stack.inside(service, "cat /proc/self/status")
        rights = dict(re.findall(r"^(Cap\w+|NoNewPrivs):\s+(\w+)$", status, re.MULTILINE))
        assert {int(value, 16) for name, value in rights.items() if name.startswith("Cap")} == {0}
        assert rights["NoNewPrivs"] == "1"
        assert "Read-only file system" in stack.inside(service, "touch /here /etc/here", check=False)
        if service in VOLUMES:
            stack.inside(service, f"touch {VOLUMES[service]}/here && rm {VOLUMES[service]}/here")
    assert "Read-only" in stack.inside("triton", "touch /models/here", check=False)


def test_ports_are_on_loopback_and_networks_apart(stack: Stack) -> None:
    for service, name in (("triton", "GRPC"), ("mlflow", "MLFLOW")):
        ports = stack.state(service)["NetworkSettings"]["Ports"]
        bound = [binding for bindings in ports.values() for binding in bindings or ()]
        assert bound == [{"HostIp": "127.0.0.1", "HostPort": str(stack.ports[name])}]
    others = {own["IPAddress"] for own in stack.state("postgres")["NetworkSettings"]["Networks"].values()}
    (address,) = others
    assert "bad address" in stack.inside("triton", "nc -w 3 postgres 5432", check=False)
    assert stack.inside("triton", f"nc -w 3 {address} 5432 </dev/null && echo reached", check=False) != "reached"
    reach = "import socket; socket.create_connection(('{}', {}), 3)"
    assert "not known" in stack.inside("mlflow", f'python3 -c "{reach.format("triton", 8001)}"', check=False)
    stack.inside("mlflow", f'python3 -c "{reach.format("postgres", 5432)}"')


# Under load


@contextmanager
def load(stack: Stack, config: ClientConfig) -> Iterator[Callable[[], int]]:
    """Clients that score one row after another; none of their requests may fail. Says how many were answered."""
    stop, answered, failed = threading.Event(), [0], list[BaseException]()

    def ask() -> None:
        with Client(stack.grpc, "movielens", config) as client:
            while not stop.wait(0.01):
                try:
                    client.predict(ROW)
                    answered[0] += 1
                except Exception as error:  # what it is, is shown
                    failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: answered[0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed[:3]
    assert answered[0]


@contextmanager
def running(stack: Stack, command: str) -> Iterator[str]:
    """What a `docker run` of the document starts, healthy, at another port than the stack's; HOST:PORT."""
    url = f"127.0.0.1:{stack.ports['TLS']}"
    command = command.replace("127.0.0.1:8001", url).replace("--rm", "--rm --detach --name rankline-one")
    stack.run(command)
    try:
        status = "docker inspect --format '{{.State.Health.Status}}' rankline-one"
        wait_until(lambda: stack.run(status).stdout.strip() == "healthy")
        yield url
    finally:
        stack.run("docker rm --force rankline-one")


def test_version_and_a_rollback_fail_no_request(stack: Stack, rows: pa.Table, offline_scores: Any) -> None:
    exporting, going_back = documented("Versions")
    with load(stack, ClientConfig(retry_lost=False)):
        stack.run(f"{exporting} --engine onnx")
        wait_until(lambda: "version 2 of movielens is active" in stack.log("triton"))
        with Client(stack.grpc, "movielens") as client:
            wait_until(lambda: "successfully unloaded 'movielens' version 1" in stack.log("triton"))
            np.testing.assert_allclose(client.predict(rows), offline_scores, atol=SCORE_ROUNDING)
        build, start = documented("The serving image")  # of ONNX Runtime alone
        stack.run(build)
        assert int(stack.run("docker image inspect --format '{{.Size}}' rankline-triton:onnx").stdout) < 250_000_000
        with running(stack, start) as url, Client(url, "movielens") as client:
            np.testing.assert_allclose(client.predict(rows), offline_scores, atol=SCORE_ROUNDING)
        stack.run(going_back)
        wait_until(lambda: "successfully unloaded 'movielens' version 2" in stack.log("triton"))


# One image


def test_image_of_the_active_version_scores_as_offline(stack: Stack, rows: pa.Table, offline_scores: Any) -> None:
    """It needs nothing to write to, and says what it was made from."""
    build, start = documented("One image")
    said = stack.run(build).stdout
    assert said.startswith("rankline-movielens:1: version 1 of movielens, ")
    labels = json.loads(
        stack.run("docker image inspect --format '{{json .Config.Labels}}' rankline-movielens:1").stdout
    )
    ensemble = ExportedEnsemble.load(stack.path / "model_repository/movielens", 1)
    assert labels["rankline.run"] == ensemble.run_id
    assert labels["rankline.data"] == ensemble.manifest.made_from["prepared-data"]
    assert (labels["rankline.recipe"], labels["rankline.version"]) == ("movielens", "1")
    assert float(labels["rankline.parity"]) < SCORE_ROUNDING
    with running(stack, start) as url, Client(url, "movielens") as client:
        np.testing.assert_allclose(client.predict(rows), offline_scores, atol=SCORE_ROUNDING)


# What is kept


def test_runs_artifacts_and_metrics_are_there_after_down_and_up(stack: Stack) -> None:
    """Training into the stack's MLflow; a page in a browser cannot reach it under another name."""
    *commands_of_tracking, down, up = documented("Where data is stored")
    for command in commands_of_tracking:
        stack.run(command)
    typed("rankline sync", stack.path)  # what a busy server did not accept in time
    store = MlflowClient(f"http://127.0.0.1:{stack.ports['MLFLOW']}")
    (run,) = store.search_runs([experiment.experiment_id for experiment in store.search_experiments()])
    files = [file.path for file in store.list_artifacts(run.info.run_id)]
    assert run.data.metrics["valid_auc"] > 0
    assert files
    scraped = float(found(stack, "max(max_over_time(nv_inference_count[1h]))")[0]["value"][1])
    stack.run(down)
    stack.run(up)
    again = store.get_run(run.info.run_id)
    assert (again.data.metrics, again.data.params) == (run.data.metrics, run.data.params)
    assert [file.path for file in store.list_artifacts(run.info.run_id)] == files
    assert store.download_artifacts(run.info.run_id, files[0])
    assert float(found(stack, "max(max_over_time(nv_inference_count[1h]))")[0]["value"][1]) >= scraped
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(f"http://127.0.0.1:{stack.ports['MLFLOW']}/", headers={"Host": "rebound.example"}))


def test_services_that_are_killed_are_healthy_again_and_clients_lose_nothing(stack: Stack) -> None:
    """All at once, so that MLflow starts while PostgreSQL does; then the server by the kernel, for memory."""
    with load(stack, ClientConfig()) as answered:
        before = {service: stack.state(service) for service in stack.services}
        for service in stack.services:
            stack.inside(service, "kill -9 $(cat /proc/1/task/1/children)", check=False)
        for service in stack.services:
            wait_until(lambda service=service: is_another(stack.state(service), before[service]))
        count = answered()
        wait_until(lambda: answered() > count)
        killed = stack.state("triton")
        first = "for process in $(pidof tritonserver); do echo 1000 > /proc/$process/oom_score_adj; done"
        stack.inside("triton", f"{first}; tail /dev/zero", check=False)
        wait_until(lambda: "tritonserver exited with status 137. Restarting it." in stack.log("triton"))
        wait_until(lambda: stack.is_healthy("triton"))
        count = answered()
        wait_until(lambda: answered() > count)
    seen = f"docker events --since {killed['State']['StartedAt']} --until $(date +%s) --filter container={killed['Id']}"
    assert "oom" in stack.run(f"{seen} --format '{{{{.Action}}}}'").stdout.split()


def test_engine_that_is_killed_brings_everything_back(stack: Stack) -> None:
    """Docker's daemon dies under load and is started again, by what starts a machine's daemons."""
    first = Path(stack.environment["DOCKER_HOST"].removeprefix("unix://")).with_name("engine.pid")
    if not first.is_file():
        pytest.skip("the engine is this machine's own")
    (daemon,) = (child for child in psutil.Process(int(first.read_text())).children() if child.name() == "dockerd")
    store = MlflowClient(f"http://127.0.0.1:{stack.ports['MLFLOW']}")
    runs = [run.info.run_id for run in store.search_runs(["0", "1"])]
    before = {service: stack.state(service) for service in stack.services}
    with load(stack, ClientConfig(timeout_s=600)) as answered:
        wait_until(lambda: answered() > 0)
        daemon.kill()
        daemon.wait()
        wait_until(lambda: not stack.run("docker version", check=False).returncode)
        for service in stack.services:
            wait_until(lambda service=service: is_another(stack.state(service), before[service]))
        count = answered()
        wait_until(lambda: answered() > count)
    assert runs
    assert [run.info.run_id for run in store.search_runs(["0", "1"])] == runs


def is_another(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a container was started again, and is healthy."""
    is_new = now["State"]["StartedAt"] != before["State"]["StartedAt"]
    return is_new and now["State"].get("Health", {}).get("Status") == "healthy"


# What goes wrong


def test_second_stack_waits_for_an_export_it_may_read(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It lies beside the first, and is not started anew while it waits."""
    path = copy_of_the_project(tmp_path_factory.mktemp("second"))
    second = Stack(path, {**stack.environment, "COMPOSE_PROJECT_NAME": "rankline-second"}, ("triton",))
    second.choose()
    repository = path / "model_repository"
    repository.mkdir(exist_ok=True)
    path.chmod(0o755)
    second.run("docker compose up --detach")
    wait_until(
        lambda: "contains no exported ensemble yet" in second.log("triton") or "does not exist" in second.log("triton")
    )
    shutil.copytree(stack.path / "model_repository/movielens", path / "hidden")
    (path / "hidden/movielens/config.pbtxt").chmod(0o600)
    (path / "hidden").rename(repository / "movielens")
    wait_until(lambda: "user 1000 cannot read /models/movielens/movielens/config.pbtxt" in second.log("triton"))
    assert not second.is_healthy("triton")
    (repository / "movielens/movielens/config.pbtxt").chmod(0o644)
    wait_until(lambda: second.is_healthy("triton"))
    assert second.state("triton")["RestartCount"] == 0
    with Client(second.grpc, "movielens") as client:
        assert client.predict(ROW).shape == (1,)
    second.run("docker compose down")
    second.choose(RANKLINE_GRPC_PORT=str(stack.ports["GRPC"]))
    taken = second.run("docker compose up --detach", check=False)
    assert taken.returncode != 0
    assert "port is already allocated" in taken.stderr
    second.run("docker compose down --volumes")


TRACK = "python3 /opt/rankline/track.py --backend-store-uri=postgresql+psycopg2://mlflow@postgres:5432"
YESTERDAY = """
from alembic import command
from alembic.script import ScriptDirectory
from mlflow.store.db.utils import _get_alembic_config, create_sqlalchemy_engine
from mlflow.store.tracking.dbmodels.initial_models import Base
from sqlalchemy import text

uri = "postgresql+psycopg2://mlflow@postgres:5432/yesterday"
engine, config = create_sqlalchemy_engine(uri), _get_alembic_config(uri)
Base.metadata.create_all(engine)
now, *earlier = [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()]
with engine.begin() as connection:
    config.attributes["connection"] = connection
    command.upgrade(config, earlier[20])
    insert = text("INSERT INTO experiments (name, lifecycle_stage) VALUES (:name, :stage)")
    connection.execute(insert, {"name": "kept", "stage": "active"})
print(now)
"""


def test_tables_of_yesterdays_mlflow_are_brought_to_todays(stack: Stack) -> None:
    """An option that there is not ends the server as soon as it has its tables."""
    ask = partial('psql -U mlflow {1} -qAtc "{0}"'.format)
    stack.inside("postgres", ask("CREATE DATABASE yesterday", "mlflow"))
    *_, now = stack.inside("mlflow", f"python3 -c '{YESTERDAY}'").splitlines()
    said = stack.inside("mlflow", f"{TRACK}/yesterday --no-such-option", check=False)
    assert said.startswith("track: these tables were created by an older MLflow")
    assert stack.inside("postgres", ask("SELECT version_num FROM alembic_version", "yesterday")) == now
    assert stack.inside("postgres", ask("SELECT name FROM experiments", "yesterday")) == "kept"
    stack.inside("postgres", ask("UPDATE alembic_version SET version_num = 'of tomorrow'", "yesterday"))
    said = stack.inside("mlflow", f"{TRACK}/yesterday", check=False)
    assert said.startswith("track: these tables were created by a newer MLflow (revision of tomorrow)")
    assert "\n" not in said


# TLS


def test_grpc_is_encrypted_with_the_override(stack: Stack) -> None:
    openssl = need_program("openssl", package="openssl")
    certificate, key = stack.path / "server.pem", stack.path / "server.key"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [openssl, *request, *names, "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=True
    )
    shutil.chown(key, 1000, 1000)
    variables, up = documented("Open gRPC to a network")
    stack.run(f"{variables.replace('192.0.2.10', '127.0.0.1')} && {up}")
    wait_until(lambda: stack.is_healthy("triton"))
    for port in ("GRPC", "TLS"):
        with Client(
            f"localhost:{stack.ports[port]}", "movielens", ClientConfig(tls=ClientTls(root=certificate))
        ) as client:
            assert client.predict(ROW).shape == (1,)
        with pytest.raises(ServerError):
            Client(f"localhost:{stack.ports[port]}", "movielens", ClientConfig(timeout_s=2))


def test_benchmark_of_containers_loses_no_request(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH"):
        if name in stack.environment:
            monkeypatch.setenv(name, stack.environment[name])
    report = bench_stack.run(1, num_rows=2_000)
    check_report(
        report,
        sides=["process", "container", "container, no proxy", "under load", "image, tensorflow", "image, onnx"],
        ratios=["start_over_process", "p50_over_process", "p50_no_proxy_over_process", "requests_failed"],
    )
    assert report.ratios["requests_failed"] == 0
