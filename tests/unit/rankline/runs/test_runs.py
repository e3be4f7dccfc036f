"""Runs as they are read back, what they were exported as, stores that refuse, and MLflow's pages of them."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from typer.testing import CliRunner

from rankline.cli.main import app
from rankline.doctor import checks as doctor
from rankline.registry.activation import register
from rankline.runs.mlflow_ui import lay_out, serve_pages
from rankline.runs.reader import StoredRun, _Server, check_run
from rankline.runs.run_tables import print_runs
from rankline.runs.store import check_store, open_store, record_export, server, uri_of, uri_of_run
from rankline.runs.summary import RunSummary, differences, find_run, runs_in, validation_of
from rankline.serving.repository.ensemble import KIND, ExportedEnsemble, active_versions
from rankline.terminal.console import CONSOLE
from rankline.training.tracking.config import OWN_ID
from rankline.training.tracking.errors import reason_of
from rankline.workflows.core.errors import ArtifactError, ConfigError, ServerError
from rankline.workflows.storage.artifacts import Manifest
from tests.factories.ensembles import NAME, publish_tiny
from tests.factories.reports import report_of, result_of
from tests.unit.rankline.conftest import Store

SCORED = np.array([0.0, 1, 1]), np.array([0.25, 0.5, 0.75])


def test_run_says_how_good_how_fast_and_what_became_of_it(store: Store) -> None:
    run_id = store.trained(
        "mlp, seed 0",
        {"auc": 0.75, "logloss": 0.5},
        params={"epochs": 2},
        report=report_of(result_of()),
        engine="onnx",
        version="shop 3",
        data="0123456789ab",
    )
    run = find_run(store.reader, run_id)
    assert run.name == "mlp, seed 0"
    assert run.recipe == "shop"
    assert run.status == "FINISHED"
    assert run.objective == ("AUC", 0.75)
    assert run.serving["p50_ms"] == pytest.approx(200, rel=1e-3)
    assert (run.engine, run.version, run.data) == ("onnx", "shop 3", "0123456789ab")
    assert run.duration_s is not None
    assert run.to_dict()["params"] == {"epochs": "2"}


def test_runs_are_listed_latest_first_of_one_recipe_or_of_all(store: Store) -> None:
    first, second = (store.trained(f"mlp, seed {seed}", {"auc": 0.7}) for seed in (1, 2))
    listed = [run.run_id for run in runs_in(store.reader, "shop", limit=2)]
    assert listed == [second, first]
    trial = store.client.create_run(store.experiment, tags={"mlflow.parentRunId": first}).info.run_id
    every = {run.run_id for run in runs_in(store.reader)}
    assert {first, second} <= every
    assert trial not in every
    assert find_run(store.reader, trial[:12]).run_id == trial
    with pytest.raises(ConfigError, match="contains no run of 'shoes'"):
        runs_in(store.reader, "shoes")


def test_runs_of_a_recipe_file_are_those_of_its_name(store: Store, tmp_path: Path) -> None:
    store.trained("mlp, of a file", {"auc": 0.7})
    path = tmp_path / "rankline.yaml"
    path.write_text("name: shop\ndata: {files: [a.csv]}\ncolumns: {x: {}}\nlabels: {y: {}}\n")
    done = CliRunner().invoke(app, ["runs", str(path), "--work-dir", str(store.root)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "mlp, of a file" in done.output


def test_failed_run_is_listed_with_its_reason(store: Store) -> None:
    run_id = store.trained("mlp", {}, failure="the loss is NaN")
    assert find_run(store.reader, run_id).failure == ""  # resumed, and then finished
    store.client.set_terminated(run_id, "FAILED")
    found = find_run(store.reader, run_id)
    with CONSOLE.capture() as printed:
        print_runs([found], {}, CONSOLE)
    assert "shop: mlp (the loss is NaN)" in printed.get()


def test_active_run_is_listed_with_the_version_that_is_active(store: Store, tmp_path: Path) -> None:
    run_id = store.trained("mlp", {}, version=f"{NAME} 2")
    for promote in (True, False):  # the export of version 2 was not promoted
        publish_tiny(tmp_path / NAME, 10, run=(run_id, store.uri), promote=promote)
    publish_tiny(tmp_path / "elsewhere", 10)
    active = active_versions(tmp_path)
    assert active == {run_id: f"{NAME} 1"}
    runs = [find_run(store.reader, one) for one in (run_id, store.trained("other", {}))]
    assert [run.active_version(active) for run in runs] == [f"{NAME} 1", ""]
    with CONSOLE.capture() as printed:
        print_runs(runs, active, CONSOLE)
    assert re.findall(rf"{NAME} \d +active", printed.get()) == [f"{NAME} 1  active"]


def test_run_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    run_id = store.trained("mlp", {})
    assert find_run(store.reader, run_id[:12]).run_id == run_id
    assert find_run(store.reader, run_id[:12]).objective is None
    for named, expected in (
        ("shop", "'shop' does not identify a run"),
        ("0" * 12, "matches no runs"),
        ("abc", "at least the first 4 digits"),
    ):
        with pytest.raises(ConfigError, match=expected):
            find_run(store.reader, named)
    with pytest.raises(ArtifactError, match="cannot be read"):
        find_run(store.reader, "0" * 32)


def test_run_that_began_without_the_store_is_found_by_its_own_id(store: Store) -> None:
    run_id, own_id = store.trained("mlp", {}), "c" * 32
    store.client.set_tag(run_id, OWN_ID, own_id)
    for reader in (store.reader, _Server(store.reader.uri)):
        assert find_run(reader, own_id).run_id == run_id


def test_store_in_a_file_says_without_mlflow_what_mlflow_says_of_it(store: Store) -> None:
    run_id = store.trained("odd", {"auc": float("nan"), "logloss": 0.5}, params={"epochs": 2}, engine="onnx")
    for number in (1, 2):
        store.client.log_metric(run_id, "again", number, step=number)
    store.client.delete_run(store.run())
    by_mlflow = _Server(store.uri)
    for ask in (
        lambda reader: reader.runs(None, 1000),
        lambda reader: reader.runs("shop", 3),
        lambda reader: reader.runs_called(run_id[:20], 5),
        lambda reader: [reader.run(run_id)],
        lambda reader: sorted(reader.experiments()),
    ):
        assert repr(ask(store.reader)) == repr(ask(by_mlflow))  # NaN is not equal to itself
    with pytest.raises(ArtifactError, match=f"Run with id={'0' * 32} not found"):
        by_mlflow.run("0" * 32)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["runs", "compare", "status"])
def test_verbs_that_only_look_do_not_wait_for_mlflow(store: Store, tmp_path: Path, verb: str) -> None:
    trained = [store.trained("mlp", {"auc": 0.7}, scored=SCORED) for _ in range(2)]
    runs = trained if verb == "compare" else []
    uri = "" if verb == "status" else f"--work-dir {store.root}"
    if verb == "status":
        ensemble = publish_tiny(tmp_path / "model_repository" / NAME, 10)
        register(ensemble, store.uri)
    command = [verb, *runs, *uri.split()]
    code = f"import sys; from rankline.cli.main import app; app({command}, standalone_mode=False); " + (
        "print(*sorted({'mlflow', 'scipy', 'tensorflow', 'nvtabular'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == []
    assert done.stdout


def test_scores_of_validation_rows_are_read_back_where_there_are_some(store: Store) -> None:
    scored = find_run(store.reader, store.trained("mlp", {}, scored=SCORED))
    found = validation_of(store.reader, scored)
    assert found is not None
    np.testing.assert_array_equal(found.scores, SCORED[1].astype(np.float32))
    assert validation_of(store.reader, find_run(store.reader, store.trained("mlp", {}))) is None


def test_differences_of_runs_are_only_those(store: Store) -> None:
    given = [{"epochs": 2, "model": "mlp"}, {"epochs": 3, "model": "mlp", "cross_layers": 2}]
    runs = [find_run(store.reader, store.trained("r", {}, params=params)) for params in given]
    assert differences(runs) == {"epochs": ["2", "3"], "cross_layers": ["–", "2"]}


def test_differences_include_the_models_that_a_run_compared() -> None:
    metrics = {
        f"compared_{name}_{figure}": value
        for name, *figures in (("linear", 0.75, 0.01, 0.0), ("catboost", 0.8, 0.02, 0.6))
        for figure, value in zip(("auc", "spread", "weight"), figures, strict=True)
    }
    of_all = {"experiment": "shop", "status": "FINISHED", "start_ms": 0, "end_ms": None, "params": {}, "tags": {}}
    runs = [StoredRun(run_id="0" * 32, metrics=one, **of_all) for one in (metrics, {"auc": 0.5})]  # type: ignore[arg-type]
    assert differences([RunSummary.of(run) for run in runs]) == {
        "compared: linear": ["0.7500 ± 0.0100", "–"],
        "compared: catboost": ["0.8000 ± 0.0200, 60% of the model", "–"],
    }


def test_work_directory_without_runs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ArtifactError, match=r"there are no runs because .*work/mlflow.db does not exist"):
        open_store(uri_of(tmp_path / "work"))
    assert not (tmp_path / "work").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert uri_of(tmp_path) == "http://localhost:1"


def exported(path: Path, run_id: str, uri: str, version: int = 4) -> ExportedEnsemble:
    """An ensemble with one step of 2.5 MB."""
    step = path / f"shop_score_v{version}" / "1"
    step.mkdir(parents=True)
    (step / "model").write_bytes(bytes(2_500_000))
    details = {"run_id": run_id, "tracking_uri": uri, "engine": "onnx"}
    manifest = Manifest(kind=KIND, fingerprint="", details=details)
    return ExportedEnsemble(path=path, name="shop", version=version, steps=(step.parent.name,), manifest=manifest)


def test_run_says_what_it_was_exported_as(store: Store, tmp_path: Path) -> None:
    run_id = store.trained("mlp", {"auc": 0.7})
    for version in (3, 4):
        record_export(exported(tmp_path, run_id, store.uri, version), tmp_path)
    run = find_run(store.reader, run_id)
    assert (run.version, run.engine, run.serving) == ("shop 4", "onnx", {"megabytes": 2.5})


def test_deleted_run_is_reported_and_a_foreign_model_has_none(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"could not be tagged as exported \(version 4\): .* The exported ensemble is"
    ):
        record_export(exported(tmp_path, "0" * 32, store.uri), tmp_path)
    record_export(exported(tmp_path / "elsewhere", "", "nowhere"), tmp_path)


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
    [(401, "MLFLOW_TRACKING_PASSWORD"), (403, "MLFLOW_TRACKING_TOKEN"), (404, "check the path in MLFLOW_TRACKING_URI")],
)
def test_refusing_server_is_reported_in_one_line(
    refusing: str, status: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:s3cret@{refusing}/{status}")
    with pytest.raises(ArtifactError, match=rf"/{status} rejected the request: .*{remedy}") as refused:
        check_store(str(server()))
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "does not exist"), (b"", "no such table"), (b"garbage" * 99, "not a database")]
)
def test_store_that_lost_a_run_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "mlflow.db").write_bytes(content)
    uri = uri_of(tmp_path)
    check_store(uri)  # good enough for a new run
    with pytest.raises(ArtifactError, match=reason):
        check_run(uri, "0" * 32)


@pytest.mark.parametrize("status", [200, 500])
def test_failing_server_does_not_stop_training(refusing: str, status: int) -> None:
    check_store(f"http://{refusing}/{status}")


def test_unreachable_server_does_not_stop_training() -> None:
    check_store("http://127.0.0.1:1")


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "localhost:5000", "nonsense://x", " "])
def test_uri_that_is_no_store_is_refused_in_a_line(uri: str) -> None:
    with pytest.raises(ConfigError, match="MLflow cannot open the store .*MLFLOW_TRACKING_URI to http") as refused:
        check_store(uri)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("verb", [["run", "movielens"], ["runs"], ["ui"]], ids=" ".join)
def test_verb_is_refused_at_once(
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
    assert "contains '%41', which MLflow does not support" in check.detail


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
            "API request to http://h/x got no response",
        ),
        (
            MlflowException("Downloading failed from URI file:/x:\n\n##### File a #####\nno such file"),
            "Downloading failed from URI file:/x: no such file",
        ),
        (shutil.Error([("a", "b", "[Errno 28] No space left"), ("c", "d", "other")]), "[Errno 28] No space left"),
        (OSError(""), ""),
    ],
)
def test_reason_is_extracted_from_a_long_message(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_running_server_is_not_started_again() -> None:
    with serve_pages("http://mlflow:5000/", 5000) as (address, wait):
        assert (address, wait) == ("http://mlflow:5000", None)


def test_taken_port_is_named_before_anything_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(
                ServerError, match=f"port {port} on 127.0.0.1 is already in use.* or pass 0 for any free port"
            ),
            serve_pages("sqlite:///x", port),
        ):
            pass


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("arguments", [["runs"], ["ui", "--no-open"], ["compare", "abcd1234", "abcd1235"]])
def test_verbs_name_a_store_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there are no runs" in refusal(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_experiment_opens_on_its_runs_with_the_columns_that_count(store: Store) -> None:
    run_id = store.trained("mlp", {"auc": 0.7}, report=report_of(result_of()))
    for name in ("AUC", "inner_logloss", "inner_train_loss"):
        store.client.log_metric(run_id, name, 0.7, step=1)
    empty = store.client.create_experiment("empty")
    pages = lay_out(store.client)
    assert pages == {
        "shop": f"/#/experiments/{store.experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART"
        "&viewStateShareKey=rankline"
    }
    tags = store.client.get_experiment(store.experiment).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    state = json.loads(tags["mlflow.sharedViewState.rankline"])
    names = ("AUC", "p50 ms", "p99 ms", "rows/s")
    assert state["selectedColumns"][:5] == [*(f"metrics.`{name}`" for name in names), "tags.`version`"]
    curves = [chart["selectedMetricKeys"] for chart in state["compareRunCharts"] if chart["type"] == "LINE"]
    assert ["inner_logloss", "inner_train_loss"] in curves  # one pair of axes
    assert "mlflow.sharedViewState.rankline" not in store.client.get_experiment(empty).tags
    assert lay_out(store.client) == pages
