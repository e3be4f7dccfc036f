"""Stores that refuse are found before long work."""

import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow.exceptions import MlflowException
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.doctor import checks as doctor
from rankline.runs.store import check_store, server, uri_of, uri_of_run
from rankline.training.tracking.errors import reason_of
from rankline.workflows.core.errors import ArtifactError, ConfigError


class _Refusing(BaseHTTPRequestHandler):
    """Answers with the status at the beginning of the path."""

    def do_POST(self) -> None:
        body = b"<html>\nno\n</html>"
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815  (the library's)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as answering:
        Thread(target=answering.serve_forever).start()
        yield f"127.0.0.1:{answering.server_address[1]}"
        answering.shutdown()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "MLFLOW_TRACKING_PASSWORD"), (403, "MLFLOW_TRACKING_TOKEN"), (404, "check the path of MLFLOW_TRACKING_URI")],
)
def test_server_that_refuses_is_told_in_a_line(
    refusing: str, status: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:s3cret@{refusing}/{status}")
    with pytest.raises(ArtifactError, match=rf"/{status} refuses to answer: .*{remedy}") as refused:
        check_store(str(server()))
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("status", [200, 302, 500])
def test_server_in_trouble_keeps_nobody_from_training(refusing: str, status: int) -> None:
    check_store(f"http://{refusing}/{status}")


def test_server_that_is_away_keeps_nobody_from_training() -> None:
    check_store("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "uri",
    ["file:///tmp/mlruns", "./mlruns", "/abs/mlruns", "127.0.0.1:5000", "localhost:5000", "nonsense://x", " ", "uc:x"],
)
def test_uri_that_is_no_store_is_refused_in_a_line(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"MLflow cannot open the store .*MLFLOW_TRACKING_URI takes http") as refused:
        check_store(uri)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "verb",
    [["run", "movielens"], ["tune", "movielens"], ["runs"], ["compare", "0" * 32, "1" * 32], ["ui"]],
    ids=" ".join,
)
def test_verb_is_refused_before_its_work(
    refusing: str, tmp_path: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{refusing}/401")
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, verb)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "MLFLOW_TRACKING_USERNAME" in told.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_doctor_reports_a_store_that_mlflow_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a%41").mkdir()
    monkeypatch.chdir(tmp_path / "a%41")
    check = doctor._store()
    assert not check.works
    assert "contains '%41', which MLflow cannot open" in check.detail


def test_store_of_a_run_is_that_of_its_artifact_or_of_the_work_directory(tmp_path: Path) -> None:
    there, gone = (f"sqlite:///{tmp_path / name / 'mlflow.db'}" for name in ("there", "gone"))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mlflow.db").touch()
    work = tmp_path / "work"
    assert uri_of_run(there, work) == there
    assert uri_of_run("http://host", work) == "http://host"
    assert uri_of_run(gone, work) == uri_of_run("", work) == uri_of(work)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            MlflowException("API request to http://u:p@h/x failed with exception HTTP\nlong"),
            "API request to http://h/x got no answer",
        ),
        (
            MlflowException("Downloading failed from URI file:/x:\n\n##### File a #####\nno such file"),
            "Downloading failed from URI file:/x: no such file",
        ),
        (shutil.Error([("a", "b", "[Errno 28] No space left"), ("c", "d", "other")]), "[Errno 28] No space left"),
        (OSError(""), ""),
    ],
)
def test_of_a_long_story_the_reason_is_told(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
