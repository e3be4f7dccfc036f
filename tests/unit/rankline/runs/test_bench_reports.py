import json
from pathlib import Path

import pytest

from rankline.runs.bench_reports import find_report, log_report, read_report
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Load
from rankline.workflows.core.errors import ArtifactError
from tests.factories.reports import ALONE, report_of, result_of
from tests.unit.rankline.conftest import Store

FILES = {"bench.json", "bench.csv", "bench.html", "bench.png", "histograms"}


def files(store: Store, run_id: str) -> set[str]:
    """What of a report a run has."""
    return {Path(file.path).name for file in store.client.list_artifacts(run_id, "bench")}


@pytest.fixture(scope="module")
def report() -> BenchmarkReport:
    return report_of(result_of(Load(batch_size=4, concurrency=8)))


def test_report_is_on_disk_and_in_the_run_and_read_back(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    (tmp_path / "histograms").mkdir()
    (tmp_path / "histograms" / "of_an_earlier_report.hdr").touch()
    log_report(report, store.uri, run_id, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES == files(store, run_id)
    assert [path.name for path in tmp_path.glob("histograms/*")] == ["rows_4_concurrency_8.hdr"]
    metrics = store.client.get_run(run_id).data.metrics
    assert metrics["bench/concurrency_8/p50_ms"] == report.bench[0].value("p50_ms")
    assert "bench/concurrency_8/p999_ms" not in metrics  # not reported
    assert read_report(store.reader, run_id) == report


def test_file_that_cannot_be_written_costs_no_other(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    (tmp_path / "bench.csv" / "in_the_way").mkdir(parents=True)
    with pytest.raises(match=r"bench\.csv cannot be written to .*: Is a directory"):
        log_report(report, store.uri, run_id, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text())["model_name"] == "movielens"
    assert (tmp_path / "bench.png").stat().st_size > 1000
    assert files(store, run_id) == FILES  # where there was room, all of it


def test_picture_that_cannot_be_drawn_costs_no_figure(
    store: Store, report: BenchmarkReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise ValueError("Data cannot be drawn.")

    monkeypatch.setattr("rankline.serving.loadtest.report.plot.Figure", refuse)
    run_id = store.run()
    expected = (
        rf"bench\.html, bench\.png cannot be written to .*: ValueError: Data .* But MLflow run {run_id} has the rest"
    )
    with pytest.raises(ArtifactError, match=expected):
        log_report(report, store.uri, run_id, tmp_path)
    assert BenchmarkReport.read(tmp_path / "bench.json") == report == read_report(store.reader, run_id)
    assert (
        {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.csv", "histograms"} == files(store, run_id)
    )
    assert store.client.get_run(run_id).data.metrics["bench/concurrency_8/p50_ms"]


def test_without_a_directory_the_run_still_gets_the_report(
    store: Store, report: BenchmarkReport, tmp_path: Path
) -> None:
    run_id = store.run()
    (tmp_path / "file").touch()
    with pytest.raises(match=r"nothing can be written to .*file/below: Not a dir.* has the whole"):
        log_report(report, store.uri, run_id, tmp_path / "file" / "below")
    assert files(store, run_id) == FILES
    assert read_report(store.reader, run_id) == report


def test_deleted_run_costs_no_file(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    store.client.delete_run(run_id)
    with pytest.raises(match=f"MLflow run {run_id} in sqlite:.* refused it"):
        log_report(report, store.uri, run_id, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_run_without_a_report_and_no_run_are_told(store: Store, tmp_path: Path) -> None:
    for run_id in (store.run(), "0" * 32):
        with pytest.raises(ArtifactError, match=f"bench/bench.json of MLflow run {run_id} in .* cannot be read"):
            read_report(store.reader, run_id)
    run_id = store.run()
    (tmp_path / "bench.json").write_text('{"format_version": 1, "bench": []}')
    store.client.log_artifact(run_id, str(tmp_path / "bench.json"), "bench")
    with pytest.raises(ArtifactError, match=f"run {run_id} has format version 1, this Rankline reads 2"):
        read_report(store.reader, run_id)


def test_report_is_found_by_its_file_or_its_run(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    log_report(report, store.uri, run_id, tmp_path)
    assert find_report(str(tmp_path / "bench.json"), store.uri) == find_report(run_id, store.uri) == report
    with pytest.raises(ArtifactError, match=f"there is no file {run_id[:8]}, and the id of an MLflow run has 32"):
        find_report(run_id[:8], store.uri)


def test_latency_is_a_curve_over_the_rows_of_a_request_and_a_run_is_told_by_its_ends(
    store: Store, tmp_path: Path
) -> None:
    run_id = store.run()
    loads = [ALONE, Load(batch_size=64, concurrency=1), Load(batch_size=1, concurrency=8)]
    measured = [result_of(load, range(number, 400 + number)) for number, load in enumerate(loads, start=1)]
    log_report(report_of(*measured), store.uri, run_id, tmp_path)
    curve = {point.step: point.value for point in store.client.get_metric_history(run_id, "bench/p50_ms")}
    assert curve == {1: measured[0].value("p50_ms"), 64: measured[1].value("p50_ms")}
    metrics = store.client.get_run(run_id).data.metrics
    assert metrics["serving/p50_ms"] == measured[0].value("p50_ms")
    assert metrics["serving/p99_ms"] == measured[0].value("p99_ms")
    assert metrics["serving/rows_per_s"] == max(result.rows_per_s for result in measured)
    assert "bench/concurrency_8/p50_ms" in metrics
