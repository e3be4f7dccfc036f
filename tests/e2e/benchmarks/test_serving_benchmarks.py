"""Trial runs of the benchmarks of serving."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.__main__ import main as bench
from bench.harness import fixtures
from bench.harness.fixtures import make_model
from bench.harness.report import Report
from bench.harness.scaling_curve import curve, svg
from bench.peers.processes import Server
from bench.serving import alternatives, client, crosscheck, foreign, promotion, scaling, serving, tune, wide
from rankline.recipes.workspace import Workspace
from rankline.serving.loadtest.serving_config import Effort
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.schema.model_artifact import TrainedModel
from tests.oracles.bench_reports import check_report

ROOT = Path(__file__).parents[3]


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

    for module in (alternatives, fixtures, promotion, serving, tune):
        monkeypatch.setattr(module, "make_model", copied)


@pytest.mark.usefixtures("made_once")
def test_serving_benchmark_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"batch_sizes": (1, 8), "turn_s": 0.05, "concurrent_turn_s": 0.3}
    monkeypatch.setattr(serving, "VARIANTS", {"python": serving.VARIANTS["python"]})  # each takes seconds
    monkeypatch.setattr(serving, "run", partial(serving.run, **short))
    monkeypatch.setattr(sys, "argv", [str(ROOT / "bench" / "__main__.py"), "serving"])
    bench("serving", repeats=1, recipe=None, json_file=tmp_path / "out.json")
    report = Report.load(tmp_path / "out.json")
    assert report.environment["command"] == "python -m bench serving"
    check_report(
        report,
        sides=[
            "rankline",
            "python",
            "merlin-systems",
            "identity",
            "native identity",
            "native identity, no batcher",
            "in process",
        ],
        ratios=[
            *("p50_vs_merlin", "throughput_vs_merlin", "concurrent_vs_merlin", "p50_over_native_identity"),
            *("concurrent_over_native_identity", "p50_over_floor", "throughput_over_in_process", "memory_vs_python"),
        ],
    )
    ours, merlin = (report.results[side] for side in ("rankline", "merlin-systems"))
    assert report.ratios["p50_vs_merlin"] == pytest.approx(merlin["p50_ms@1"] / ours["p50_ms@1"])
    assert report.ratios["throughput_vs_merlin"] == pytest.approx(ours["rows_per_s@8"] / merlin["rows_per_s@8"])


@pytest.mark.usefixtures("made_once")
def test_tuner_is_compared_with_an_exhaustive_search() -> None:
    coarse = Effort(duration_s=0.25, step=16.0, resolution=16.0, confirmations=0)
    report = tune.run(1, slo="p99=10s", varied=("fused",), time_limit_s=1, effort=coarse)
    check_report(report, sides=["tuner", "exhaustive"], ratios=["tuned_over_exhaustive", "time_over_exhaustive"])
    assert [figures["configurations"] for figures in report.results.values()] == [1, 2]


@pytest.mark.usefixtures("made_once")
def test_versions_change_without_a_failed_request() -> None:
    report = promotion.run(1)
    check_report(
        report,
        sides=["promote", "rollback", "follow"],
        ratios=["failed_requests", "slowest_rollback_s", "slowest_follow_s"],
    )
    assert report.ratios["failed_requests"] == 0
    assert all(figures["turns"] == 4 and figures["requests"] > 0 for figures in report.results.values())


@pytest.mark.usefixtures("made_once")
def test_latency_is_measured_at_rates_up_to_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "num_cores", lambda: 1)
    report = scaling.run(1, seconds=0.5)
    assert len(report.results) == 9
    assert curve(report.results, 1)
    assert report.ratios["knee_requests_per_s_1_core"] > 0
    cost = report.ratios["cents_per_million_scores_1_core@1"]
    assert cost == pytest.approx(1e6 / report.ratios["knee_requests_per_s_1_core"] / 3600 * 4.5)
    drawn = ElementTree.fromstring(svg(report.results))  # well-formed
    assert "knee, 1 core" in "".join(drawn.itertext())


@pytest.fixture
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "_CLIENT_CALLS", 50)


@pytest.mark.usefixtures("made_once", "few_calls")
def test_alternatives_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`python -m bench alternatives`" in (ROOT / "README.md").read_text(encoding="utf-8")
    absent = Server(command="no_such_module --port {port}")
    monkeypatch.setattr(alternatives, "MAINTAINED", {**alternatives.MAINTAINED, "absent": absent})
    peers = ["mlflow", "plain triton", "merlin-systems", "nvtabular in fastapi"]
    # One request at a time: with 32 in flight, the slowest side answers none within a short turn.
    report = alternatives.run(1, turn_s=0.5, workers=1, loads=alternatives.LOADS[:1], peers=[*peers, "absent"])
    ratios = ["best_peer", "mlflow", "plain_triton", "plain_triton_server", "merlin", "nvtabular_in_fastapi"]
    assert "No module named no_such_module" in report.left_out.pop("absent")
    results = {side: figures for side, figures in report.results.items() if side != "absent"}
    check_report(
        replace(report, results=results),
        sides=["rankline", *peers, "in process", "in process, all cores"],
        ratios=["run_over_in_process", *(f"p50_vs_{name}" for name in ratios)],
    )


@pytest.mark.usefixtures("few_calls")
@pytest.mark.parametrize("recipe", ["criteo-dlrm", "amazon-sim"])
def test_peers_score_other_recipes_as_the_server_does(recipe: str) -> None:
    """The benchmark itself compares the scores of all sides."""
    loads = alternatives.LOADS[:1]
    report = alternatives.run(1, recipe=recipe, num_rows=1_000, turn_s=0.3, workers=1, loads=loads, peers=["asgi"])
    check_report(
        report,
        sides=["rankline", "asgi", "in process", "in process, all cores"],
        ratios=["p50_vs_best_peer", "p50_vs_asgi", "run_over_in_process"],
    )


@pytest.mark.usefixtures("made_once")
def test_three_tools_measure_the_same_server() -> None:
    report = crosscheck.run(1, seconds=0.5)
    measured = {side: figures for side, figures in report.results.items() if figures}
    assert {"rankline", "rankline, grpcio", "LoadGen"} <= set(measured)  # perf_analyzer may lack a C library
    assert all("p50_ms@1" in figures for figures in measured.values())  # a busy machine may measure no other
    assert {"p50_difference", "loadgen_p50_ms_at_1"} <= set(report.ratios)
    check_report(replace(report, results=measured), sides=list(measured), ratios=report.ratios)


def test_benchmark_of_saved_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other notebook is this one without its function.
    monkeypatch.setattr(foreign, "NOTEBOOKS", {"uncompiled": foreign.NOTEBOOKS["uncompiled"]})
    report = foreign.run(1, num_rows=4_000, batch_sizes=(1, 16), turn_s=0.05)
    sides = ["rankline, uncompiled", "merlin-systems, LambdaOp"]
    check_report(report, sides=sides, ratios=["uncompiled_p50_vs_merlin"])


def test_wide_benchmark() -> None:
    report = wide.run(1, widths=(210,))
    ratios = ["export_s", "export_growth_over_columns", "client_p50_ms", "message_p50_ms", "message_over_step"]
    check_report(report, sides=["210 columns", "client, 210", "message, 210", "step alone, 210"], ratios=ratios)


def test_client_benchmark() -> None:
    report = client.run(1, turn_s=0.2, num_runs=2, run_s=1.0)
    sides = ["http2", "grpcio", "Client", "AsyncClient"]
    assert list(report.results) == [*sides, "closed loop", "open loop"]
    for side in sides:
        assert list(report.results[side]) == ["cpu_ms_per_request", "offered_per_s@1", "offered_per_s@4"]
        assert min(report.results[side].values()) > 0
