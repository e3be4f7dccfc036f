import json
from collections.abc import Mapping

import numpy as np
import pytest
from rich.console import Console

from rankline.runs.compare import RunComparison, compare_runs
from rankline.runs.run_tables import print_run_comparison, to_html
from rankline.runs.summary import find_run
from rankline.serving.loadtest.report.report import BenchmarkReport
from rankline.serving.loadtest.runs import Load
from rankline.training.distributed.communicator import Array
from rankline.workflows.core.errors import ConfigError
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
    assert f"is as good as {found.before.short_id}: no difference that 4,000 rows can show" in found.verdict


def test_verdict_names_a_significant_change_of_another_figure(store: Store) -> None:
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0) ** 3))  # the same order
    assert "is as good as" in found.verdict
    assert "; but surely worse: logloss +" in found.verdict


def test_other_rows_are_compared_less_surely_and_it_is_said(store: Store) -> None:
    part = slice(None, NUM_ROWS // 2)
    found = compared(store, (LABELS, scores(1.0)), (LABELS[part], scores(1.2)[part]))
    assert not found.is_paired
    assert found.num_rows == NUM_ROWS // 2
    assert any("other rows" in remark for remark in found.remarks)


def test_speed_is_compared_where_both_were_measured(store: Store) -> None:
    loads = [ALONE, Load(batch_size=64, concurrency=1)]
    slow, fast = (
        report_of(*(result_of(load, np.arange(1, 401) * factor, num_slices=8) for load in loads)) for factor in (2, 1)
    )
    found = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0)), (slow, fast))
    assert "p50_ms at rows 1 400 → 200 (-50.0%)" in found.verdict
    assert found.remarks == ()
    lacking = compared(store, (LABELS, scores(1.0)), (LABELS, scores(1.0)), (slow, None))
    assert lacking.serving is None
    remedy = "for it was not measured: rankline export, then rankline bench"
    assert f"run {lacking.after.short_id} has no latency, {remedy}" in lacking.remarks


def test_run_without_scores_costs_only_that_comparison(store: Store) -> None:
    found = compared(store, None, (LABELS, scores(1.0)), params=({"epochs": 1}, {"epochs": 2}))
    assert "quality was not compared" in found.verdict
    assert any(f"run {found.before.short_id} keeps no scores" in remark for remark in found.remarks)
    assert found.differing == {"epochs": ["1", "2"]}


def test_labels_of_one_class_are_not_compared(store: Store) -> None:
    found = compared(store, (np.ones(20), np.ones(20)), (np.ones(20), np.ones(20)))
    assert "quality was not compared" in found.verdict
    assert any("both classes" in remark for remark in found.remarks)


def test_run_is_not_compared_with_itself(store: Store) -> None:
    run = find_run(store.reader, store.trained("r", {}))
    with pytest.raises(ConfigError, match="given twice"):
        compare_runs(store.reader, run, run)


def test_terminal_page_and_json_say_the_same(store: Store) -> None:
    report = report_of(result_of(num_slices=8))
    found = compared(
        store,
        (LABELS, scores(1.0)),
        (LABELS, scores(1.2)),
        (report, report),
        ({"model": "<mlp>"}, {"model": "dlrm"}),
    )
    console = Console(width=200, record=True, highlight=False)
    print_run_comparison(found, console)
    text, page, document = console.export_text(), to_html([found]), json.loads(json.dumps(found.to_dict()))
    for expected in ("AUC", "better", "rows 1: p50_ms", "dlrm"):
        assert expected in text
        assert expected in page
    assert found.verdict in text
    assert document["verdict"] == found.verdict
    assert "&lt;mlp&gt;" in page
    assert "<mlp>" in text
