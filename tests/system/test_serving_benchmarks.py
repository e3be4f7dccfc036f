"""Trial runs of the benchmarks of serving."""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench import alternatives, client, foreign, promotion, serving, tune, wide
from bench.__main__ import main as bench
from bench.models import make_model
from rankline.workspace import Workspace
from serving.benchmark.metrics import Estimate
from serving.benchmark.records import SliceRecord
from serving.benchmark.report import LoadResult
from serving.benchmark.runs import Load, Run
from serving.tuning import Effort
from workflows.prepared import PreparedData
from workflows.trained import TrainedModel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """What `make_model` makes of a little of MovieLens."""
    directory = tmp_path_factory.mktemp("made")
    workspace = Workspace(recipe="movielens", root=directory / "work", repository=directory / "repository")
    make_model(workspace, 5_000, small_layers=True)
    return workspace


@pytest.fixture
def made_once(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks of one model of MovieLens begin with a copy of the same."""

    def copied(workspace: Workspace, *_: object, **__: object) -> tuple[PreparedData, TrainedModel]:
        assert workspace.recipe == made.recipe
        for ours, theirs in ((made.root, workspace.root), (made.repository, workspace.repository)):
            shutil.copytree(ours, theirs, symlinks=True, dirs_exist_ok=True)
        return PreparedData.load(workspace.prepared), TrainedModel.load(workspace.model)

    for module in (alternatives, promotion, tune):
        monkeypatch.setattr(module, "make_model", copied)


def test_the_serving_benchmark_of_the_readme_reports_its_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, but on little data: what it is typed as, and the file that it writes."""
    assert "`python -m bench serving`" in (ROOT / "README.md").read_text(encoding="utf-8")
    sizes = (1, 8, 32)
    short = {"num_rows": 5_000, "small_layers": True, "batch_sizes": sizes, "turn_s": 0.05, "concurrent_turn_s": 0.5}
    variants = {side: serving.VARIANTS[side] for side in ("python", "onnx")}  # each takes seconds
    monkeypatch.setattr(serving, "VARIANTS", variants)
    monkeypatch.setattr(serving, "run", partial(serving.run, **short))
    monkeypatch.setattr(sys, "argv", [str(ROOT / "bench" / "__main__.py"), "serving"])
    bench("serving", repeats=1, recipe="criteo-dlrm", json_file=tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["name"] == "serving"
    assert report["environment"]["command"].startswith("python -m bench serving")
    results, ratios = report["results"], report["ratios"]
    assert list(results) == [
        *("rankline", "python", "onnx", "merlin-systems"),
        *("identity", "native identity", "in process"),
    ]
    assert all(name.endswith("_small_layers") for name in ratios)  # not what the recipe as it is comes to
    ratios = {name.removesuffix("_small_layers"): value for name, value in ratios.items()}
    ours, merlin = results["rankline"], results["merlin-systems"]
    assert next(iter(ratios)) == "p50_vs_merlin"
    assert "p50_over_floor" in ratios
    assert ratios["p50_vs_merlin"] == pytest.approx(merlin["p50_ms@1"] / ours["p50_ms@1"])
    assert ratios["p50_vs_merlin_8"] == pytest.approx(merlin["p50_ms@8"] / ours["p50_ms@8"])
    assert ratios["throughput_vs_merlin"] == pytest.approx(ours["rows_per_s@32"] / merlin["rows_per_s@32"])
    assert set(ours) == {f"{name}@{size}" for name in ("p50_ms", "p99_ms", "rows_per_s") for size in sizes} | {
        *("requests_per_s@1x32", "ready_s", "memory_mb")
    }
    assert ratios["memory_vs_python"] == pytest.approx(ours["memory_mb"] / results["python"]["memory_mb"])


@pytest.mark.usefixtures("made_once")
def test_the_tuner_is_compared_with_an_exhaustive_search() -> None:
    coarse = Effort(duration_s=0.25, step=16.0, resolution=16.0, confirmations=0)
    report = tune.run(1, slo="p99=10s", varied=("engine",), time_limit_s=1, effort=coarse)
    results = report.results
    assert {side: figures["configurations"] for side, figures in results.items()} == {"tuner": 1, "exhaustive": 2}
    assert report.ratios["tuned_over_exhaustive"] == pytest.approx(
        results["tuner"]["requests_per_s"] / results["exhaustive"]["requests_per_s"]
    )
    for figures in results.values():
        assert figures["requests_per_s"] > 0
        assert figures["search_s"] > 0


@pytest.mark.usefixtures("made_once")
def test_versions_change_without_a_failed_request() -> None:
    report = promotion.run(1)
    assert report.ratios["failed_requests"] == 0
    assert {side: figures["turns"] for side, figures in report.results.items()} == {
        "promote": 4, "rollback": 4, "follow": 4,
    }  # fmt: skip
    for figures in report.results.values():
        assert 0 < figures["median_s"] <= figures["max_s"]
        assert figures["requests"] > 0
    assert report.ratios["slowest_rollback_s"] == report.results["rollback"]["max_s"]


def test_a_model_that_is_no_network_is_measured_against_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "VARIANTS", {"python": serving.VARIANTS["python"]})
    report = serving.run(
        1, recipe="movielens-history", num_rows=2_000, batch_sizes=(1, 8), turn_s=0.05, concurrent_turn_s=0.3
    )
    ours, plain = report.results["rankline"], report.results["plain"]
    assert report.ratios["p50_over_plain"] == pytest.approx(ours["p50_ms@1"] / plain["p50_ms@1"])


@pytest.mark.usefixtures("made_once")
def test_the_alternatives_benchmark_reports_its_ratios() -> None:
    # One request at a time: with 32 in flight, the slowest side answers none within a short turn.
    report = alternatives.run(1, turn_s=1.0, workers=1, loads=alternatives.LOADS[:1])
    assert list(report.results) == ["rankline", "merlin-systems", "fastapi", "mlflow"]
    ours, peers = report.results["rankline"], {"merlin": "merlin-systems", "fastapi": "fastapi", "mlflow": "mlflow"}
    expected = {f"p50_vs_{name}": report.results[side]["p50_ms@1"] / ours["p50_ms@1"] for name, side in peers.items()}
    assert report.ratios == pytest.approx(expected)


def test_the_benchmark_of_what_notebooks_saved_reports_its_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other notebook is this one without its function.
    monkeypatch.setattr(foreign, "NOTEBOOKS", {"uncompiled": foreign.NOTEBOOKS["uncompiled"]})
    report = foreign.run(1, num_rows=4_000, batch_sizes=(1, 16), turn_s=0.05)
    results, ratios = report.results, report.ratios
    assert list(results) == ["rankline, uncompiled", "merlin-systems, LambdaOp"]
    p50 = {side: figures["p50_ms@1"] for side, figures in results.items()}
    assert ratios["uncompiled_p50_vs_merlin"] == pytest.approx(
        p50["merlin-systems, LambdaOp"] / p50["rankline, uncompiled"]
    )


def test_the_wide_benchmark_reports_its_ratios() -> None:
    report = wide.run(1, widths=(210,))
    assert list(report.results) == ["210 columns", "client, 210", "message, 210", "step alone, 210"]
    message, step = (report.results[f"{side}, 210"]["p50_ms"] for side in ("message", "step alone"))
    assert report.ratios["message_p50_ms"] == message > step
    assert report.ratios["message_over_step"] == pytest.approx(message / step)
    assert report.ratios["export_growth_over_columns"] == 1


def test_the_client_benchmark_reports_what_a_client_costs_and_whether_runs_agree() -> None:
    report = client.run(1, turn_s=0.2, num_runs=2, run_s=1.0)
    sides = ["http2", "grpcio", "Client", "AsyncClient"]
    assert list(report.results) == [*sides, "closed loop", "open loop"]
    for side in sides:
        figures = report.results[side]
        assert list(figures) == ["cpu_ms_per_request", "offered_per_s@1", "offered_per_s@4"]
        assert figures["cpu_ms_per_request"] > 0
        assert min(figures["offered_per_s@1"], figures["offered_per_s@4"]) > 0
    num_pairs = num_agreeing = 0.0
    for loop in ("closed loop", "open loop"):
        figures = report.results[loop]
        for name in (name.partition("_")[2] for name in figures if name.startswith("pairs_")):
            assert figures[f"pairs_{name}"] == 1
            assert figures[f"agreement_{name}"] in (0, 1)
            num_pairs += figures[f"pairs_{name}"]
            num_agreeing += figures[f"agreement_{name}"] * figures[f"pairs_{name}"]
    expected = {"agreement": pytest.approx(num_agreeing / num_pairs)} if num_pairs else {}
    assert report.ratios == expected


def test_runs_agree_where_their_intervals_overlap_and_pairs_without_a_bound_are_not_counted() -> None:
    def result(interval_ns: tuple[int, int | None] | None) -> LoadResult:
        found = LoadResult.of_run(Run(load=Load(batch_size=1, concurrency=1), slices=(SliceRecord(),)), is_stable=True)
        low, high = interval_ns or (None, None)
        return replace(found, metrics={**found.metrics, "p50_ms": Estimate(value=1.0, low=low, high=high)})

    runs = [result(interval) for interval in ((1, 3), (2, 5), (5, 6), (1, 2), (3, 4))]
    assert client.pairs_that_agree(runs, "p50") == [True, True, False, False]
    assert client.pairs_that_agree([result(None), *runs, result((3, None))], "p50") == [True, True, False, False]
    assert client.pairs_that_agree(runs, "p99") == []
