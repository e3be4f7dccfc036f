import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankline.report.analysis import Analysis, analyze
from rankline.report.ranking import NDCG, RECALL, RankedItems
from rankline.report.run_page import RunReport
from rankline.serving.loadtest.runs import Load
from rankline.serving.loadtest.stats.percentiles import Estimate
from rankline.training.evaluation import quality
from rankline.training.evaluation.validation_scores import ValidationScores
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import KIND, TrainedModel
from rankline.workflows.schema.targets import REGRESSION, Head
from rankline.workflows.storage.artifacts import publish
from tests.factories.ensembles import publish_tiny
from tests.factories.pages import ParsedPage
from tests.factories.reports import report_of, result_of
from tests.factories.training.heads import spec_of
from tests.unit.rankline.report.conftest import score

CURVES = {"inner_logloss": [(1.0, 0.6), (2.0, 0.5), (3.0, 0.55)], "inner_train_loss": [(1.0, 0.7), (2.0, 0.4)]}
COMPARED = {
    "metric": "auc",
    "reason": "linear is best",
    "candidates": [
        {"name": "linear", "score": 0.8, "spread": 0.01, "weight": 1.0, "problem": ""},
        {"name": "catboost", "score": 0.7, "spread": 0.01, "weight": 0.0, "problem": ""},
        {"name": "realmlp", "score": None, "spread": None, "weight": 0.0, "problem": "no time was left"},
    ],
}


def model(path: Path, **details: object) -> TrainedModel:
    about = {"format": "model.onnx", "run_id": "", "tracking_uri": "", "metrics": {"epoch": 2.0}, **details}
    with publish(path, KIND, details=about) as staging:
        (staging / "model.onnx").touch()
    return TrainedModel.load(path)


@pytest.fixture
def found(prepared: PreparedData, tmp_path: Path) -> RunReport:
    rows = prepared.heldout()
    labels = rows["bought"].to_numpy()
    metrics = {f"valid_{name}": value for name, value in quality(labels, score(rows)).items()}
    latencies = np.random.default_rng(0).gamma(20, 0.02, 2_000)
    return RunReport(
        ensemble=publish_tiny(tmp_path / "tiny", 1, run=("4157d113" * 4, "")),
        bench=report_of(
            *(result_of(Load(batch_size=size, concurrency=1), latencies) for size in (1, 64)),
            num_checked=400,
            max_abs_error=1e-7,
            environment={"cpu": "EPYC 9", "cpu_count": "2"},
            quality={**metrics, "served_auc": metrics["valid_auc"]},
        ),
        prepared=prepared,
        trained=model(tmp_path / "model", config={"model": "mlp"}),
        analysis=analyze(prepared, rows, labels, score(rows), score),
        curves=CURVES,
        steps=[("rankline serve shop", "keep serving")],
    )


def test_report_answers_how_good_how_fast_compared_with_what_and_what_next(found: RunReport) -> None:
    assert found.analysis is not None
    assert found.analysis.baseline is not None
    source = found.page().html()
    text = ParsedPage(source).text
    auc = found.bench.quality["served_auc"]
    baseline = found.analysis.baseline
    assert f"AUC is {auc:.4f} , clearly better than amount alone ({baseline.figure:.4f})" in text
    assert "The server answers 1 row in 0." in text
    assert "rows per second" in text
    assert "validation rows, AUC is" in text
    assert "400 scores compared with the expected ones" in text
    assert "rankline serve shop" in text
    for part in ("tiny", "version 1 · active", "served = trained ✓", "run 4157d113", "2 cores of EPYC 9", "mlp"):
        assert part in text
    for title in ("Learning curve", "ROC", "Calibration", "Latency", "Throughput", "Columns", "By user", "By kind"):
        assert title in text
    assert len(source) < 150_000


def test_report_of_a_model_that_ranks_compares_it_with_the_most_popular_items(found: RunReport) -> None:
    assert found.analysis is not None
    model, popular = {RECALL: 0.25, NDCG: 0.2}, {RECALL: 0.125, NDCG: 0.1}
    ranked = RankedItems(num_users=1_234, model=model, popular=popular)
    report = replace(found, analysis=replace(found.analysis, ranked=ranked))
    text = ParsedPage(report.page().html()).text
    assert "Recall@20 is 25.0% , compared with 12.5% for the most popular items." in text
    assert "for 1,234 users" in text
    assert "Recall@20 0.2500   the most popular items 0.1250   1,234 users" in list(report.quality_lines())


def test_report_of_a_model_that_auto_chose_shows_the_candidates(found: RunReport, tmp_path: Path) -> None:
    chosen = replace(found, trained=model(tmp_path / "chosen", compared=COMPARED))
    text = ParsedPage(chosen.page().html()).text
    assert "Models compared Chosen: linear is best. realmlp" in text
    assert "linear 0.8000 ± 0.0100, 100% of the model" in text
    assert "realmlp was left out: no time was left" in text
    assert "Learning curve" not in text


def test_report_without_quality_is_about_speed(found: RunReport) -> None:
    bare = RunReport(ensemble=found.ensemble, bench=replace(found.bench, quality={}))
    text = ParsedPage(bare.page().html()).text
    assert text.count("How good") == 0
    assert "The server answers 1 row in 0." in text


def test_problem_and_busy_machine_are_said_first(found: RunReport) -> None:
    bench = replace(found.bench, problem="the client was the bottleneck", busy="load 7.0")
    text = ParsedPage(replace(found, bench=bench).page().html()).text
    head = text[: text.index("How good")]
    assert "the client was the bottleneck" in head
    assert "Other programs were using the machine (load 7.0)" in head
    assert "served = trained" not in head


def test_nothing_measured_is_said(found: RunReport) -> None:
    text = ParsedPage(replace(found, bench=report_of()).page().html()).text
    assert "Nothing was measured." in text


def test_model_that_is_no_better_than_one_column_is_told_so(found: RunReport) -> None:
    assert found.analysis is not None
    assert found.analysis.baseline is not None
    for gain, said in ((0.0, "no better than"), (-0.3, "worse than")):
        figure = found.analysis.baseline.figure + gain
        bench = replace(found.bench, quality={**found.bench.quality, "served_auc": figure})
        report = replace(found, bench=bench)
        assert said in report.verdict
        figures = list(report.quality_lines())[1]
        assert ("worse than amount alone (0." in figures) == (said == "worse than")


@pytest.mark.parametrize(("num_rows", "note"), [(30, "within chance"), (2_000, "too high on average"), (0, "close to")])
def test_scores_are_too_high_only_if_that_is_more_than_chance(found: RunReport, num_rows: int, note: str) -> None:
    assert found.analysis is not None
    scores = np.full(max(num_rows, 10), 0.5)
    labels = (np.arange(len(scores)) % 10 < (4 if num_rows else 5)).astype(float)
    scored = replace(found.analysis.scores, labels=labels, scores=scores, groups=None)
    quality = {**found.bench.quality, "valid_calibration": scores.mean() / labels.mean()}
    report = replace(
        found, analysis=replace(found.analysis, scores=scored), bench=replace(found.bench, quality=quality)
    )
    (tile,) = (tile for tile in report.page().tiles if tile.title == "Calibration")
    assert note in tile.note


def test_several_labels_are_told_apart(found: RunReport) -> None:
    assert found.prepared is not None
    heads = (Head("bought"), Head("spent", REGRESSION), Head("liked"))
    labels = np.tile([[0, 3.0, 1], [1, 2.0, 0]], (20, 1))
    scored = ValidationScores(heads=heads, labels=labels, scores=np.full((40, 3), 0.5))
    analysis = Analysis(scores=scored, columns=(), num_columns=0, parts={}, whole=None, baseline=None, ranked=None)
    report = replace(
        found,
        prepared=replace(found.prepared, spec=spec_of(heads)),
        analysis=analysis,
        bench=replace(
            found.bench,
            quality={"valid_loss": 0.7, "valid_bought_auc": 0.8, "valid_bought_logloss": 0.5, "valid_spent_rmse": 2.0},
        ),
    )
    assert list(report.quality_lines()) == ["loss 0.7000", "bought: AUC 0.8000", "spent: RMSE 2.0000"]
    page = report.page()
    assert {("bought: AUC", "0.8000"), ("spent: RMSE", "2.0000")} < {(tile.title, tile.value) for tile in page.tiles}
    titles = [card.title for card in page.sections[0].cards]
    assert {"bought: ROC", "liked: ROC", "spent: Errors"} < set(titles)
    assert len(titles) == len(set(titles))


def test_terminal_lines_say_quality_and_speed(found: RunReport) -> None:
    quality_line, others, calibration = found.quality_lines()
    assert quality_line.startswith(f"AUC {found.bench.quality['served_auc']:.4f} (")
    assert "amount alone 0." in others
    assert "guessing 0.5" in others
    assert re.fullmatch(r"the mean score is [\d.]+% (above|below) the mean label", calibration)
    lines = list(found.speed_lines())
    assert [line.split("  ")[0] for line in lines] == ["1 row", "64 rows"]
    few = {**found.bench.bench[0].metrics, "p50_ms": Estimate()}
    bench = replace(found.bench, bench=(replace(found.bench.bench[0], metrics=few),))
    assert "– ms" in next(replace(found, bench=bench).speed_lines())


def test_notebooks_show_models_ensembles_and_reports(found: RunReport) -> None:
    assert found.trained is not None
    for shown, expected in (
        (replace(found.trained, metrics={"valid_auc": 0.75}), "0.7500"),
        (found.ensemble, "version 1 · active"),
        (found, "rows per second"),
    ):
        assert expected in ParsedPage(shown._repr_html_()).text
