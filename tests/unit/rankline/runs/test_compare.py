import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rankline.report.comparison_page import comparison_page
from rankline.runs.bench_reports import PageFile, log_report, read_report
from rankline.runs.compare import RunComparison, compare_runs
from rankline.runs.run_tables import print_run_comparison
from rankline.runs.summary import find_report, find_run
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Load
from rankline.training.distributed.communicator import Array
from rankline.training.evaluation.validation_scores import ValidationScores
from rankline.workflows.core.errors import ArtifactError, ConfigError
from rankline.workflows.page.page import Page
from rankline.workflows.schema.targets import Head
from tests.factories.pages import ParsedPage
from tests.factories.reports import ALONE, report_of, result_of
from tests.unit.rankline.conftest import Store

RNG = np.random.default_rng(11)
NUM_ROWS = 4_000
LABELS = RNG.integers(0, 2, NUM_ROWS)
NOISE = RNG.normal(size=NUM_ROWS)


def scores(signal: float) -> Array:
    """The more signal, the better."""
    return 1 / (1 + np.exp(-(NOISE + signal * LABELS)))


def compared(
    store: Store,
    before: tuple[Array, Array] | None,
    after: tuple[Array, Array] | None,
    reports: tuple[BenchmarkReport | None, BenchmarkReport | None] = (None, None),
    params: tuple[Mapping[str, object], Mapping[str, object]] = ({}, {}),
) -> RunComparison:
    runs = [
        find_run(store.reader, store.trained(f"run {number}", {}, scored=scored, report=report, params=choices))
        for number, (scored, report, choices) in enumerate(zip((before, after), reports, params, strict=True))
    ]
    return compare_runs(store.reader, runs[0], runs[1])


def test_better_run_is_named_with_how_sure_that_is(store: Store) -> None:
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.2)))
    assert found.is_paired
    assert [one.title for one in found.quality] == ["AUC", "logloss"]
    assert found.quality[0].is_better
    assert f"{found.after.short_id} is better than {found.before.short_id}: AUC +0.0" in found.verdict
    assert f"on {NUM_ROWS:,} rows" in found.verdict
    worse = compared(store, (LABELS, scores(1.2)), (LABELS, scores(1.0)))
    assert "is worse than" in worse.verdict


def test_difference_that_may_be_chance_is_none(store: Store) -> None:
    shaken = scores(1.0) + RNG.normal(size=NUM_ROWS) * 0.02
    found = compared(store, (LABELS, scores(1.0)), (LABELS, np.clip(shaken, 0, 1)))
    assert f"is as good as {found.before.short_id}: no significant difference on 4,000 rows" in found.verdict


def test_verdict_names_a_significant_change_of_another_figure(store: Store) -> None:
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0) ** 3))  # the same order
    assert "is as good as" in found.verdict
    assert "; but significantly worse: logloss +" in found.verdict


def test_comparison_on_other_rows_is_wider_and_says_so(store: Store) -> None:
    part = slice(None, NUM_ROWS // 2)
    found = compared(store, (LABELS, scores(1.0)), (LABELS[part], scores(1.2)[part]))
    assert not found.is_paired
    assert found.num_rows == NUM_ROWS // 2
    assert any("different rows" in remark for remark in found.remarks)


@pytest.mark.slow
def test_speed_is_compared_where_both_were_measured(store: Store) -> None:
    loads = [ALONE, Load(batch_size=64, concurrency=1)]
    latencies = RNG.permutation(np.arange(1, 401))  # in order, they would drift: no interval could be sure
    slow, fast = (
        report_of(*(result_of(load, latencies * factor, num_slices=8) for load in loads)) for factor in (2, 1)
    )
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0)), (slow, fast))
    assert "p50 ms, 1 row: 400 → 200 (-50.0%, better)" in found.verdict
    assert found.remarks == ()
    lacking = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0)), (slow, None))
    assert lacking.serving is None
    remedy = "because it was not measured: rankline export, then rankline bench"
    assert f"run {lacking.after.short_id} has no latency {remedy}" in lacking.remarks


def test_run_without_scores_costs_only_that_comparison(store: Store) -> None:
    found = compared(store, None, (LABELS, scores(1.0)), params=({"epochs": 1}, {"epochs": 2}))
    assert "quality was not compared" in found.verdict
    assert any(f"run {found.before.short_id} has no stored scores" in remark for remark in found.remarks)
    assert found.differing == {"epochs": ["1", "2"]}


def test_labels_of_one_class_are_not_compared(store: Store) -> None:
    found = compared(store, (np.ones(20), np.ones(20)), (np.ones(20), np.ones(20)))
    assert "quality was not compared" in found.verdict
    assert any("both classes" in remark for remark in found.remarks)


def test_run_is_not_compared_with_itself(store: Store) -> None:
    run = find_run(store.reader, store.trained("r", {}))
    with pytest.raises(ConfigError, match="passed twice"):
        compare_runs(store.reader, run, run)
    with pytest.raises(ConfigError, match=f"shop@2 and shop@3 come from the same run, {run.short_id}"):
        compare_runs(store.reader, replace(run, called="shop@2"), replace(run, called="shop@3"))


def test_benchmark_of_another_version_of_the_run_is_not_shown(store: Store) -> None:
    report = report_of(result_of(), version=3)
    runs = [find_run(store.reader, store.trained("r", {}, report=report)) for _ in range(2)]
    found = compare_runs(store.reader, *(replace(run, called="shop@3") for run in runs))
    assert found.serving is not None
    found = compare_runs(store.reader, runs[0], replace(runs[1], called="shop@2"))
    assert found.serving is None
    assert "shop@2 has no latency because the last benchmark of its run measured version 3" in found.remarks


def test_terminal_page_and_json_say_the_same(store: Store) -> None:
    report = report_of(result_of(num_slices=8))
    found = compared(
        store, (LABELS, scores(1.0)), (LABELS, scores(1.2)), (report, report), ({"model": "<mlp>"}, {"model": "dlrm"})
    )
    console = Console(width=200, record=True, highlight=False)
    print_run_comparison(found, console)
    text, document = console.export_text(), json.loads(json.dumps(found.to_dict()))
    source = comparison_page([found]).html()
    page = ParsedPage(source).text
    for expected in ("AUC", "better", "p50 ms, 1 row", "dlrm", "<mlp>"):
        assert expected in text
        assert expected in page
    assert found.verdict in text
    assert found.verdict in page
    assert document["verdict"] == found.verdict
    for title in ("ROC", "Latency", "Speed", "What differs"):
        assert title in page
    assert len(source) < 150_000


def test_page_tells_several_labels_apart(store: Store) -> None:
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.2)))
    labels, both = (np.stack([values, values], axis=1) for values in (LABELS.astype(float), scores(1.0)))
    scored = ValidationScores(heads=(Head("clicked"), Head("bought")), labels=labels, scores=both)
    page = comparison_page([replace(found, scored=(scored, scored))])
    titles = {card.title for section in page.sections for card in section.cards}
    assert {"clicked: ROC", "bought: ROC"} < titles


def test_change_of_speed_whose_interval_includes_none_is_inconclusive(store: Store) -> None:
    before, after = (report_of(result_of(ALONE, np.arange(1, 41) * factor)) for factor in (1.0, 0.9))
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0)), (before, after))
    assert re.search(r"p50 ms, 1 row: .* \(-10\.0%, inconclusive\)", found.verdict)


FILES = {"bench.json", "bench.csv", "histograms"}


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
    assert (tmp_path / "histograms").is_dir()
    assert files(store, run_id) == FILES  # where there was room, all of it


def test_report_without_a_directory_is_in_the_run(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    (tmp_path / "file").touch()
    with pytest.raises(match=r"bench\.json, .* cannot be written to .*file/below: Not a dir.* has the whole"):
        log_report(report, store.uri, run_id, tmp_path / "file" / "below")
    assert files(store, run_id) == FILES
    assert read_report(store.reader, run_id) == report


def test_deleted_run_costs_no_file(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    store.client.delete_run(run_id)
    with pytest.raises(match=f"MLflow run {run_id} in sqlite:.* refused it"):
        log_report(report, store.uri, run_id, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_report_of_a_run_is_its_first_artifact_and_its_description(
    store: Store, report: BenchmarkReport, tmp_path: Path
) -> None:
    run_id = store.run()
    store.client.set_tag(run_id, "mlflow.note.content", "1,000 training rows.")
    of_run = PageFile(
        path=tmp_path / "report.html", make=lambda: Page(title="shop", verdict="It is good."), is_of_run=True
    )
    for _ in range(2):  # a second report replaces the first
        log_report(report, store.uri, run_id, tmp_path / "bench", of_run)
    assert {file.path for file in store.client.list_artifacts(run_id)} == {"bench", "report.html"}
    note = store.client.get_run(run_id).data.tags["mlflow.note.content"]
    assert note == "It is good.\n\n---\n\n1,000 training rows."
    later = PageFile(path=tmp_path / "bench" / "later.html", make=lambda: Page(title="later"))
    log_report(report, store.uri, run_id, tmp_path / "bench", later)
    assert files(store, run_id) == {*FILES, "later.html"}
    assert "It is good." in (tmp_path / "report.html").read_text()


def test_run_without_a_report_and_unknown_run_are_reported(store: Store, tmp_path: Path) -> None:
    for run_id in (store.run(), "0" * 32):
        with pytest.raises(ArtifactError, match=f"bench/bench.json of MLflow run {run_id} in .* cannot be read"):
            read_report(store.reader, run_id)
    run_id = store.run()
    (tmp_path / "bench.json").write_text('{"format_version": 1, "bench": []}')
    store.client.log_artifact(run_id, str(tmp_path / "bench.json"), "bench")
    with pytest.raises(ArtifactError, match=f"run {run_id} has format version 1, expected 2"):
        read_report(store.reader, run_id)


def test_report_is_found_by_its_file_or_its_run(store: Store, report: BenchmarkReport, tmp_path: Path) -> None:
    run_id = store.run()
    log_report(report, store.uri, run_id, tmp_path)
    assert find_report(str(tmp_path / "bench.json"), store.uri) == find_report(run_id, store.uri) == report
    assert find_report(run_id[:8], store.uri) == report
    with pytest.raises(ArtifactError, match=r"bench\.jsn is neither an existing file nor the beginning of an MLflow"):
        find_report("bench.jsn", store.uri)


def test_latency_is_a_curve_over_the_rows_of_a_request(store: Store, tmp_path: Path) -> None:
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
    at_rate = result_of(Load(batch_size=1, rate_per_s=5.0, arrivals="poisson"))
    log_report(report_of(at_rate), store.uri, run_id, tmp_path)
    assert store.client.get_run(run_id).data.metrics["serving/rows_per_s"] == metrics["serving/rows_per_s"]
