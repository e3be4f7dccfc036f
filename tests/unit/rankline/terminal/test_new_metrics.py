"""A percentile, a metric of a load and metrics of a model, each added from outside by one line."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rankline.api.pipeline import Quality
from rankline.serving.loadtest.compare import compare
from rankline.serving.loadtest.config import Slo
from rankline.serving.loadtest.report.cards import speed_section
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Run
from rankline.serving.loadtest.stats import metrics as load_metrics
from rankline.serving.loadtest.stats.metrics import Estimate, Metric, latency_percentile
from rankline.terminal.bench_table import print_comparison, print_report
from rankline.training import evaluation as model_metrics
from rankline.training.evaluation.scored_rows import ScoredRows
from rankline.workflows.core.errors import ConfigError
from rankline.workflows.schema.targets import Head
from tests.factories.recorders import printed
from tests.factories.reports import report_of, result_of
from tests.harness.process.programs import leave_installed


def errors_per_s(run: Run) -> Estimate:
    return Estimate(value=run.whole.errors.total() / run.duration_s)


@pytest.fixture(autouse=True)
def _new_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for added in (
        latency_percentile(0.75, is_compared=True),
        Metric(name="errors_per_s", title="errors/s", measure=errors_per_s),
    ):
        monkeypatch.setitem(load_metrics.METRICS, added.name, added)


@pytest.fixture
def report() -> BenchmarkReport:
    return report_of(result_of(counts={"errors": Counter({"UNAVAILABLE": 3})}))


def test_new_metric_is_measured_written_and_read_back(report: BenchmarkReport, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(report.to_json())
    assert BenchmarkReport.read(tmp_path / "bench.json") == report
    entry = json.loads(report.to_json())["bench"][0]
    assert (entry["p75_ms"], entry["errors_per_s"]) == (pytest.approx(300, rel=0.001), 12)
    low, high = entry["intervals_ms"]["p75"]
    (line,) = csv.DictReader(io.StringIO(report.to_csv()))
    assert (float(line["p75_low_ms"]), float(line["p75_high_ms"])) == (low, high)


def test_new_metric_is_on_the_terminal_and_the_page(report: BenchmarkReport) -> None:
    lines = printed(partial(print_report, report), 110).splitlines()
    begin = next(number for number, line in enumerate(lines) if "p75 ms" in line)
    titles, figures = (re.split(r"\s{2,}", line.strip()) for line in lines[begin : begin + 2])
    shown = dict(zip(titles, figures, strict=False))
    assert (float(shown["p75 ms"]), shown["errors/s"]) == (pytest.approx(300, rel=0.001), "12")
    section = speed_section({"": report})
    assert section.folded is not None
    assert all(f">{title}</th>" in section.folded["Figures of all loads"] for title in ("p75 ms", "errors/s"))


def test_new_metric_is_compared_and_can_be_the_bound_of_a_search(report: BenchmarkReport) -> None:
    text = printed(partial(print_comparison, compare(report, report, 0.1)))
    assert "p75 ms, 1 row" in text
    assert "errors/s" not in text
    assert Slo.parse("p75=5ms") == Slo(metric="p75_ms", level=0.75, bound_ms=5)


def test_earlier_report_is_compared_by_what_it_has(report: BenchmarkReport, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(report.to_json())
    for entry in document["bench"]:
        del entry["p75_ms"], entry["intervals_ms"]["p75"]
    earlier = BenchmarkReport.from_dict(document, "an earlier report")
    text = printed(partial(print_comparison, compare(earlier, report, 0.1)), 110)
    assert "p75 ms, 1 row, before: the report predates this metric" in text
    assert "p50 ms, 1 row" in text
    later = report.to_dict()  # and one that has more is read too
    monkeypatch.delitem(load_metrics.METRICS, "p75_ms")
    assert BenchmarkReport.from_dict(later, "a later report").bench[0].value("p50_ms") is not None


def brier(rows: ScoredRows) -> float:
    return rows.mean((rows.scores - rows.labels) ** 2)


def test_metric_of_a_model_is_measured_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_metrics.METRICS, "brier", BRIER)
    found = model_metrics.quality(np.array([1.0, 0.0]), np.array([0.5, 0.25]))
    assert (found["brier"], found["auc"]) == ((0.25 + 0.0625) / 2, 1.0)
    of_seeds = {seed: {f"valid_{name}": value + seed / 10 for name, value in found.items()} for seed in (0, 1)}
    measured = Quality(per_seed=of_seeds, best_auc=0.9, served=0.8, heads=(Head("label"),))
    assert measured.to_dict()["valid_brier"] == pytest.approx(found["brier"] + 0.05)
    assert measured.to_dict()["valid_brier_std"] == pytest.approx(0.0707, abs=1e-4)


BRIER = model_metrics.Metric(measure=brier, title="Brier score")
BROKEN = model_metrics.Metric(measure=lambda rows: rows.score)  # type: ignore[attr-defined]  # as somebody misspells it


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages; what is looked up in it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    model_metrics._installed.cache_clear()
    yield tmp_path
    model_metrics._installed.cache_clear()


def install(site: Path, name: str, attribute: str) -> None:
    leave_installed(site, "brier-score", f"[rankline.metrics]\n{name} = {__name__}:{attribute}\n")


def test_metric_of_an_installed_package_is_measured(site: Path) -> None:
    install(site, "brier", "BRIER")
    found = model_metrics.quality(np.array([1.0, 0.0]), np.array([0.5, 0.25]))
    assert found["brier"] == (0.25 + 0.0625) / 2
    assert model_metrics.all_metrics()["brier"].title == "Brier score"


def test_failing_metric_is_named_before_training(site: Path) -> None:
    heads = [Head("label"), Head("spent", task="regression"), Head("kind", task="multiclass", classes=("a", "b", "c"))]
    model_metrics.try_metrics(heads)
    install(site, "brier", "BROKEN")
    model_metrics._installed.cache_clear()
    with pytest.raises(ConfigError, match=r"metric 'brier' from an installed package failed \(AttributeError:.*score"):
        model_metrics.try_metrics(heads)


def test_metric_with_the_name_of_a_built_in_one_is_refused(site: Path) -> None:
    install(site, "auc", "BRIER")
    with pytest.raises(ConfigError, match=r"entry point 'auc' of rankline\.metrics conflicts with a built-in metric"):
        model_metrics.all_metrics()
