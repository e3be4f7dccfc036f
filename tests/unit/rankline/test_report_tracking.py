import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rankline.tracking import find_report, log_report, read_report
from serving.benchmark.report import BenchmarkReport
from serving.benchmark.runs import Load
from tests.support.reports import report_of, result_of
from workflows.errors import ArtifactError

FILES = {"bench.json", "bench.csv", "bench.html", "bench.png", "histograms"}


@dataclass(frozen=True)
class Store:
    uri: str
    client: MlflowClient
    experiment: str

    def run(self) -> str:
        run_id: str = self.client.create_run(self.experiment).info.run_id
        return run_id

    def files(self, run_id: str) -> set[str]:
        return {Path(file.path).name for file in self.client.list_artifacts(run_id, "bench")}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    return Store(uri, client, client.create_experiment("e", artifact_location=(root / "artifacts").as_uri()))


@pytest.fixture(scope="module")
def report() -> BenchmarkReport:
    return report_of(result_of(Load(batch_size=4, concurrency=8)))


def test_a_report_is_on_disk_and_in_the_run_and_read_back(
    store: Store, report: BenchmarkReport, tmp_path: Path
) -> None:
    run_id = store.run()
    (tmp_path / "histograms").mkdir()
    (tmp_path / "histograms" / "of_an_earlier_report.hdr").touch()
    log_report(report, store.uri, run_id, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES == store.files(run_id)
    assert [path.name for path in tmp_path.glob("histograms/*")] == ["rows_4_concurrency_8.hdr"]
    metrics = store.client.get_run(run_id).data.metrics
    assert metrics["bench/rows_4/concurrency_8/p50_ms"] == report.bench[0].value("p50_ms")
    assert "bench/rows_4/concurrency_8/p999_ms" not in metrics  # not reported
    assert read_report(store.uri, run_id) == report


def test_a_file_that_cannot_be_written_costs_no_other(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    (tmp_path / "bench.csv" / "in_the_way").mkdir(parents=True)
    with pytest.raises(match=r"bench\.csv cannot be written to .*: Is a directory"):
        log_report(report, store.uri, run_id, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text())["model_name"] == "movielens"
    assert (tmp_path / "bench.png").stat().st_size > 1000
    assert store.files(run_id) == FILES  # where there was room, all of it


def test_a_picture_that_cannot_be_drawn_costs_no_figure(
    store: Store, report: BenchmarkReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise ValueError("Data cannot be drawn.")

    monkeypatch.setattr("serving.benchmark.plot.Figure", refuse)
    run_id = store.run()
    expected = (
        rf"bench\.html, bench\.png cannot be written to .*: ValueError: Data .* But MLflow run {run_id} has the rest"
    )
    with pytest.raises(ArtifactError, match=expected):
        log_report(report, store.uri, run_id, tmp_path)
    assert BenchmarkReport.read(tmp_path / "bench.json") == report == read_report(store.uri, run_id)
    assert (
        {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.csv", "histograms"} == store.files(run_id)
    )
    assert store.client.get_run(run_id).data.metrics["bench/rows_4/concurrency_8/p50_ms"]


def test_without_a_directory_the_run_still_gets_the_report(
    store: Store, report: BenchmarkReport, tmp_path: Path
) -> None:
    run_id = store.run()
    (tmp_path / "file").touch()
    with pytest.raises(match=r"nothing can be written to .*file/below: Not a dir.* has the whole"):
        log_report(report, store.uri, run_id, tmp_path / "file" / "below")
    assert store.files(run_id) == FILES
    assert read_report(store.uri, run_id) == report


def test_a_deleted_run_costs_no_file(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    store.client.delete_run(run_id)
    with pytest.raises(match=f"MLflow run {run_id} in sqlite:.* refused it"):
        log_report(report, store.uri, run_id, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_run_without_a_report_and_no_run_are_told(store: Store, tmp_path: Path) -> None:
    for run_id in (store.run(), "0" * 32):
        with pytest.raises(ArtifactError, match=f"bench/bench.json of MLflow run {run_id} in .* cannot be read"):
            read_report(store.uri, run_id)
    run_id = store.run()
    (tmp_path / "bench.json").write_text('{"format_version": 1, "bench": []}')
    store.client.log_artifact(run_id, str(tmp_path / "bench.json"), "bench")
    with pytest.raises(ArtifactError, match=f"run {run_id} has format version 1, this Rankline reads 2"):
        read_report(store.uri, run_id)


def test_a_report_is_found_by_its_file_or_its_run(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    log_report(report, store.uri, run_id, tmp_path)
    assert find_report(str(tmp_path / "bench.json"), store.uri) == find_report(run_id, store.uri) == report
    with pytest.raises(ArtifactError, match=f"there is no file {run_id[:8]}, and the id of an MLflow run has 32"):
        find_report(run_id[:8], store.uri)
