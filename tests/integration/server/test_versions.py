"""Versions under load, models that lose a process, and who may load what, on real servers."""

import errno
import http.client
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from rankline.api.pipeline import bench_rows
from rankline.registry.status import statuses
from rankline.scoring.backends import Server, client_for
from rankline.serving.client import Client, ClientConfig
from rankline.serving.loadtest.config import LoadConfig
from rankline.serving.repository.ensemble import ExportedEnsemble, before
from rankline.serving.server.embedded import EmbeddedServer
from rankline.serving.server.supervisor import Follower, Supervisor, config_of
from rankline.serving.server.triton_install import NativeBackends
from rankline.serving.triton.config import PYTHON_RUNTIME
from rankline.workflows.core.errors import ConfigError, ServerError, ServingError
from tests.factories.ensembles import NAME, damage, publish_tiny
from tests.harness.network.certificates import make_certificates
from tests.harness.network.model_process import kill_model_process
from tests.harness.network.tls_proxy import tls_in_front_of
from tests.harness.process.waiting import wait_until


@dataclass
class Served:
    """A server of a tiny ensemble, and who looks after it."""

    repository: Path
    server: EmbeddedServer
    supervisor: Supervisor
    events: list[str]
    runtime: str = ""

    def publish(self, offset: int) -> ExportedEnsemble:
        return publish_tiny(self.repository, offset, runtime=self.runtime)

    def loaded(self, step: str) -> list[int]:
        """Versions of a step that the server has."""
        with InferenceServerClient(self.server.endpoints.grpc) as client:
            return [number for number in range(1, 4) if client.is_model_ready(f"{NAME}_{step}_v{number}")]

    def ask(self, key: int = 0) -> int:
        with Client(self.server.endpoints.grpc, NAME) as client:
            return int(client.predict({"x": [key]})[0])

    def processes(self, step: str) -> list[int]:
        """Model processes of a step, of any version."""
        found = []
        for child in psutil.Process(self.server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                found += [child.pid] if f"{NAME}_{step}_v" in " ".join(child.cmdline()) else []
        return found


IN_PYTHON = pytest.mark.parametrize("served", [PYTHON_RUNTIME], ids=["python"], indirect=True)
IN_BOTH = pytest.mark.parametrize("served", ["", PYTHON_RUNTIME], ids=["native", "python"], indirect=True)


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Version 1 answers 10 for key 0."""
    runtime = getattr(request, "param", "")
    ensemble = publish_tiny(tmp_path / NAME, 10, runtime=runtime)
    events: list[str] = []
    with EmbeddedServer(config_of(ensemble)) as server:
        supervisor = Supervisor(server, ensemble, follow_versions=True, report=events.append)
        yield Served(tmp_path / NAME, server, supervisor, events, runtime)


def test_server_of_another_version_is_not_measured(served: Served) -> None:
    url, active = served.server.endpoints.grpc, served.publish(20)
    rows = pa.table({"x": [0]})
    expected = rf"{url} runs version 1 of '{NAME}', but version 2 is active here\. Restart .* promote {NAME} --to 1"
    with pytest.raises(ServingError, match=expected):
        bench_rows(Server(url=url), rows, active, [1], LoadConfig())


@dataclass
class Load:
    """What clients that ask without a pause have seen: every answer, and every error by its class and text."""

    answers: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@contextmanager
def load(served: Served, num_clients: int = 4) -> Iterator[Load]:
    seen, stop = Load(), threading.Event()

    def ask(client: Client) -> None:
        request = client.prepare({"x": [0]})
        while not stop.is_set():
            try:
                seen.answers.append(int(client.infer(request)[0]))
            except ServingError as error:
                seen.errors.append(f"{type(error).__name__}: {error}")
                stop.wait(0.02)  # where a server is gone, millions would come until the test's time is over

    with ExitStack() as at_end:
        urls = [served.server.endpoints.grpc] * num_clients
        config = ClientConfig(timeout_s=120, retry_lost=False)
        clients = [at_end.enter_context(Client(url, NAME, config)) for url in urls]
        threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
            at_end.callback(thread.join)
        at_end.callback(stop.set)
        wait_until(lambda: len(seen.answers) > 100)
        yield seen


@IN_BOTH
def test_versions_change_under_load_without_a_failed_request(served: Served) -> None:
    with load(served) as seen:
        served.publish(20)
        served.supervisor.step()
        wait_until(lambda: seen.answers[-1] == 20)
        before(served.repository).activate()
        served.supervisor.step()
        wait_until(lambda: seen.answers[-1] == 10)
    assert seen.errors == []
    assert set(seen.answers) == {10, 20}  # never the workflow of one version with the model of another
    assert served.events == ["loading version 2", "version 2 is active", "loading version 1", "version 1 is active"]
    assert served.loaded("transform") == [1]  # the other version is gone
    assert len(served.processes("transform")) == bool(served.runtime)


def test_status_reports_a_server_behind_the_active_version(served: Served) -> None:
    def said() -> tuple[int | None, tuple[str, ...]]:
        (status,) = statuses(served.repository.parent, served.server.endpoints.grpc)
        return status.served, status.disagreements

    assert said() == (1, ())
    served.publish(20)  # and the supervisor does not look
    behind, disagreements = said()
    assert behind == 1
    assert [text for text in disagreements if "version 2 is active, but the server has loaded version 1" in text]
    served.supervisor.step()
    assert said() == (2, ())


@IN_BOTH
def test_version_that_cannot_be_loaded_leaves_the_old_one_active(served: Served) -> None:
    file = damage(served.publish(20), "predict")
    with load(served) as seen:
        for _ in range(3):
            served.supervisor.step()
    assert seen.errors == []
    assert set(seen.answers) == {10}
    assert served.events[1:] == [
        f"version 2 cannot be loaded, version 1 stays active: {file} does not match its checksum in the manifest. "
        "Create the ensemble again."
    ]
    assert served.loaded("transform") == [1]
    served.publish(30)
    served.supervisor.step()
    assert served.ask() == 30


class LateServer(EmbeddedServer):
    """Says that the next loads of the ensemble took too long; Triton has finished them all the same."""

    num_late = 0

    def load(self, model: str, config: str | None = None) -> None:
        super().load(model, config)
        if model == NAME and self.num_late:
            self.num_late -= 1
            raise ServerError("timed out")


@pytest.mark.parametrize("num_late", [1, 2], ids=["the new ensemble", "the old one after it, too"])
def test_failed_takeover_leaves_no_gap(tmp_path: Path, num_late: int) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10)
    events: list[str] = []
    with LateServer(config_of(ensemble)) as server:
        supervisor = Supervisor(server, ensemble, follow_versions=True, report=events.append)
        served = Served(tmp_path / NAME, server, supervisor, events)
        with load(served) as seen:
            served.publish(20)
            server.num_late = num_late
            supervisor.step()
            assert served.loaded("predict") == ([1] if num_late == 1 else [1, 2])  # whichever ensemble Triton has
            supervisor.step()
            assert (served.loaded("predict"), served.ask()) == ([1], 10)
            served.publish(30)  # another one is not made to wait
            supervisor.step()
            wait_until(lambda: seen.answers[-1] == 30)
    assert seen.errors == []
    assert events[:2] == ["loading version 2", "version 2 cannot be loaded, version 1 stays active: timed out"]
    assert events[2:] == ["loading version 3", "version 3 is active"]


def test_refused_version_is_retried_with_growing_pauses(served: Served) -> None:
    now_s = 0.0
    new = served.publish(20)
    follower = Follower(served.supervisor.serving, served.events.append, clock=lambda: now_s)
    file = new.path / f"{NAME}_predict_v2" / "1" / "plan" / "plan.json"
    content = file.read_bytes()
    file.write_bytes(content[:-1])  # it is still being copied, say
    tried_s = []
    for now_s in range(60):  # which the clock reads
        num_before = len([line for line in served.events if line == "loading version 2"])
        follower.step(served.supervisor.switch_to)
        tried_s += [now_s] * (len([line for line in served.events if line == "loading version 2"]) - num_before)
    assert tried_s == [0, 5, 15, 35]
    assert len([line for line in served.events if "cannot be loaded" in line]) == 1  # for one reason
    file.write_bytes(content)
    now_s = 75.0
    follower.step(served.supervisor.switch_to)
    assert served.ask() == 20


def test_server_survives_an_unresponsive_disk(tmp_path: Path) -> None:
    now_s, events = 0.0, list[str]()
    follower = Follower(publish_tiny(tmp_path / NAME, 10), events.append, clock=lambda: now_s)
    publish_tiny(tmp_path / NAME, 20)

    def lost(_: ExportedEnsemble) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    follower.step(lost)
    assert events == ["version 2 cannot be loaded, version 1 stays active: [Errno 116] Stale file handle"]
    now_s = 60.0
    follower.step(lambda _: None)
    assert follower.serving.version == 2


def test_unloaded_ensemble_is_loaded_again(served: Served) -> None:
    served.server.unload(NAME)  # by whoever: Triton has let it go
    for _ in range(2):  # the second finds nothing to do
        served.supervisor.step()
    assert served.ask() == 10
    assert served.events == [f"{NAME} is not ready; reloading it", f"{NAME} is ready again"]


def test_python_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10)  # it is refused when it is opened, see test_ensemble.py, and if not
    marker = tmp_path / "it ran"
    code = f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel: pass\n"
    for place in ("1/model.py", "model.py", "1/sitecustomize.py"):
        (ensemble.path / f"{NAME}_predict_v1" / place).write_text(code)
    with pytest.raises(ServerError, match=r"_predict_v1/.*\.py is not in the manifest of the ensemble\. Remove it"):
        EmbeddedServer(config_of(ensemble)).start()
    assert not marker.exists()


def test_machine_without_native_backends_serves_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "rankline.serving.server.embedded.native_backends", lambda: NativeBackends(lacking="g++ was not found")
    )
    ensemble = publish_tiny(tmp_path / NAME, 10)
    with EmbeddedServer(config_of(ensemble)) as server:
        served = Served(tmp_path / NAME, server, Supervisor(server, ensemble, follow_versions=False, report=print), [])
        assert served.ask() == 10
        assert len(served.processes("transform")) == 1
    line = "Serving workflow and model with Python instead of native backends: g++ was not found."
    assert [record.getMessage() for record in caplog.records].count(line) == 1


@IN_PYTHON
@pytest.mark.parametrize("step", ["transform", "predict"])
def test_killed_model_process_under_load_comes_back(served: Served, step: str) -> None:
    with load(served) as seen:
        (victim,) = served.processes(step)
        kill_model_process(victim)
        wait_until(lambda: served.server.dead_models() == {f"{NAME}_{step}_v1"})
        served.supervisor.step()
        answered = len(seen.answers)
        wait_until(lambda: len(seen.answers) > answered + 100)
    assert set(seen.answers) == {10}
    errors = set(seen.errors)  # no DeadlineError: nobody hangs; "has no model" while it is loaded
    assert all(text.startswith("ServerError") or "has no model" in text for text in errors), errors
    assert served.events == [f"{NAME}_{step}_v1 has lost a process; reloading it", f"{NAME}_{step}_v1 is ready again"]


@IN_PYTHON
def test_model_that_cannot_be_reloaded_is_retried(served: Served) -> None:
    folder = served.repository / f"{NAME}_predict_v1" / "1" / "plan"
    folder.rename(folder.with_name("away"))
    (victim,) = served.processes("predict")
    kill_model_process(victim)
    wait_until(lambda: served.server.dead_models() == {f"{NAME}_predict_v1"})
    served.supervisor.step()
    assert "cannot be loaded, retrying" in served.events[-1]
    folder.with_name("away").rename(folder)
    served.supervisor.step()
    assert served.events[-1] == f"{NAME}_predict_v1 is ready again"
    assert served.ask() == 10


def test_crashed_server_comes_back_at_the_same_address(tmp_path: Path) -> None:
    ensemble = publish_tiny(tmp_path / NAME, 10, runtime=PYTHON_RUNTIME)
    events: list[str] = []
    with EmbeddedServer(config_of(ensemble, log_path=tmp_path / "triton.log")) as server:
        supervisor = Supervisor(server, ensemble, follow_versions=False, report=events.append)
        served = Served(tmp_path / NAME, server, supervisor, events)
        addresses = server.endpoints
        publish_tiny(tmp_path / NAME, 20)  # not followed, so not what comes back
        os.kill(server.pid, signal.SIGSEGV)
        while "version 1 is active again" not in events:
            supervisor.step()  # at any moment of its end
        assert server.endpoints == addresses
        assert served.ask() == 10
        kill_model_process(served.processes("transform")[0])
        wait_until(lambda: bool(server.dead_models()))
        supervisor.step()
        assert served.ask() == 10
    end = events.index("version 1 is active again")
    assert "tritonserver was killed by SIGSEGV" in events[end - 1]
    assert (tmp_path / "triton.log.old").stat().st_size


def test_server_is_restarted_after_every_end_and_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankline.serving.server.supervisor._MAX_MISSES", 0)
    now_s, events = 0.0, list[str]()
    ensemble, log = publish_tiny(tmp_path / NAME, 10), tmp_path / "triton.log"
    with EmbeddedServer(config_of(ensemble, log_path=log)) as server, Client(server.endpoints.grpc, NAME) as client:
        supervisor = Supervisor(server, ensemble, follow_versions=False, report=events.append, clock=lambda: now_s)
        port = int(server.endpoints.grpc.rpartition(":")[2])
        first, back, answers = server.endpoints, "version 1 is active again", []
        for num_back, how in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):  # it ends, it hangs
            os.kill(server.pid, how)
            log.unlink()
            while events.count(back) < num_back:
                now_s += 1
                supervisor.step()
            answers += client.predict({"x": [0]}).tolist()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: server.exit_reason() is not None)
        with socket.create_server(("127.0.0.1", port)):  # somebody takes its place
            for _ in range(4):
                now_s += 10
                supervisor.step()
        now_s += 10
        supervisor.step()
        answers += client.predict({"x": [0]}).tolist()
        assert (answers, server.endpoints) == ([10, 10, 10], first)
    assert [re.sub(r" \(log: .*?\)|; it was in .*?(?=\.)|\d+", "", event) for event in events] == [
        "tritonserver was killed by SIGKILL, not by Rankline. Restarting it.",
        "version  is active again",
        "tritonserver did not respond to  checks in a row. Restarting it in  s.",
        "version  is active again",
        "tritonserver was killed by SIGKILL, not by Rankline. Restarting it.",  # it had run for a while
        "tritonserver could not be restarted, retrying until it can: grpc_port  on ... is already in use. "
        "Stop the process that uses it, or try another port, or pass  for any free port.",
        "version  is active again",
    ]


def test_client_for_a_server_behind_tls(served: Served, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    root = certificates / "root.pem"
    with tls_in_front_of(served.server.endpoints.grpc, certificates) as url:
        with client_for(tmp_path / NAME, url, root) as client:
            assert client.predict({"x": [0]}).tolist() == [10]
        for wrong, remedy in ((None, "If it requires TLS"), (certificates / "other.pem", "Check that it uses TLS")):
            with pytest.raises(ServerError, match=f"no Triton server answers at {url} .*{remedy}"):
                client_for(tmp_path / NAME, url, wrong).__enter__()
    with pytest.raises(ConfigError, match="--tls-root requires --url"):
        client_for(tmp_path / NAME, None, root).__enter__()


def test_model_control_requires_a_key(served: Served) -> None:
    assert served.server.endpoints.http == ""
    served.server.config = replace(served.server.config, http_port=0)
    served.server.restart((NAME,))
    host, _, port = served.server.endpoints.http.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    for what in (f"models/{NAME}/unload", f"models/{NAME}/load", "index"):
        connection.request("POST", f"/v2/repository/{what}", "{}")
        response = connection.getresponse()
        assert (response.status, b"restricted" in response.read()) == (http.client.FORBIDDEN, True)
    connection.close()
    client = InferenceServerClient(served.server.endpoints.grpc)
    with pytest.raises(InferenceServerException, match="restricted"):
        client.unload_model(NAME)
    with pytest.raises(InferenceServerException, match="restricted"):
        client.register_system_shared_memory("x", "/x", 8)
    client.close()
    assert served.ask() == 10


def test_python_backend_is_absent_until_it_is_needed(served: Served) -> None:
    """Even with the key: the backend that would run a `model.py` of the repository is not there until it is needed."""
    folder = served.repository / "theirs"
    (folder / "1").mkdir(parents=True)
    marker = served.repository.parent / "it ran"
    (folder / "1" / "model.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass TritonPythonModel: pass\n")
    (folder / "config.pbtxt").write_text('name: "theirs" backend: "python" max_batch_size: 0\n')
    with pytest.raises(ServerError, match="python"):
        served.server._control.load("theirs")  # as somebody else would who has the key
    assert not marker.exists()
    shutil.rmtree(folder)
    served.runtime = PYTHON_RUNTIME
    served.publish(20)
    served.supervisor.step()
    assert served.ask() == 20


def test_keys_are_hidden_from_the_process_list(served: Served) -> None:
    keys = re.findall(r":rankline-key=(\w{32})\b", "\0".join(psutil.Process(served.server.pid).environ().values()))
    assert len(set(keys)) == 1  # which its own user can read
    for process in served.server.process_ids():
        assert not [key for key in keys if key in "\0".join(psutil.Process(process).cmdline())]
