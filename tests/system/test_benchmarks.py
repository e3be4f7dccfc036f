"""The benchmarks, on little data and in short turns: what they report, not how fast it is."""

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench import client, criteo, loader, movielens, serving, stacks, training
from bench.__main__ import main as bench
from bench.report import median_ratio, take_turns
from serving.benchmark.metrics import Estimate
from serving.benchmark.records import SliceRecord
from serving.benchmark.report import LoadResult
from serving.benchmark.runs import Load, Run
from workflows.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_the_loader_benchmark_reports_its_ratios() -> None:
    report = loader.run(1, sizes=(40_000, 400_000, 450_000), max_turn_s=0.5)
    assert list(report.ratios) == [
        "vs_merlin", "vs_tfrecord", "vs_tfrecord_tuned", "vs_arrow_decode", "peak_memory_over_buffer", "first_batch_s",
        "scale_spread",
    ]  # fmt: skip
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios["vs_merlin"] == pytest.approx(rates["rankline"] / rates["merlin-dataloader"])
    assert report.ratios["vs_arrow_decode"] == pytest.approx(rates["rankline"] / rates["arrow decode"])
    by_size = [rates[side] for side in ("rankline", "rankline, 40,000 rows", "rankline, 450,000 rows")]
    assert report.ratios["scale_spread"] == pytest.approx(1 - min(by_size) / max(by_size))
    assert report.results["rankline"]["peak_memory_bytes"] > 0


def test_the_training_benchmark_reports_its_ratios() -> None:
    report = movielens.run_movielens(1, num_rows=250_000, turn_s=0.2)
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios == pytest.approx(
        {
            "vs_step_alone": rates["movielens"] / rates["movielens, one batch"],
            "vs_seed_path": rates["movielens"] / rates["seed path"],
            "vs_step_alone_seed_model": rates["movielens-seed"] / rates["movielens-seed, one batch"],
            "vs_seed_path_same_model": rates["movielens-seed"] / rates["seed path"],
        }
    )


def test_the_training_benchmark_of_criteo_reports_the_notebooks_table_and_its_ratios() -> None:
    variants = (criteo.Variant(precision="bfloat16"),)
    report = criteo.run_criteo(
        1,
        num_rows=20_000,
        variants=variants,
        precisions=("float32", "bfloat16"),
        batch_size=256,
        turn_steps=2,
        turn_s=0.3,
    )
    runs = ["native, bfloat16", "accelerated, bfloat16"]
    small = ["native, small layers", "accelerated, small layers"]
    others = ["native, no model", "accelerated, no model", "criteo-dlrm", "criteo-dlrm, one batch"]
    precisions = ["small layers, float32", "small layers, bfloat16"]
    assert list(report.results) == [*runs, *small, *others, *precisions]
    assert all(0 < report.results[side]["auc"] < 1 for side in runs)
    rates = {side: report.results[side]["rows_per_s"] for side in [*runs, *small, *others]}
    plain, mixed = (report.results[side]["auc"] for side in precisions)
    assert plain > 0.6
    assert report.ratios == pytest.approx(
        {
            "vs_tfrecord_bfloat16": rates["accelerated, bfloat16"] / rates["native, bfloat16"],
            "vs_tfrecord_small_layers": rates["accelerated, small layers"] / rates["native, small layers"],
            "data_vs_tfrecord": rates["accelerated, no model"] / rates["native, no model"],
            "vs_step_alone": rates["criteo-dlrm"] / rates["criteo-dlrm, one batch"],
            "amp_auc_difference": abs(mixed - plain),
        }
    )


def test_the_plain_run_of_the_notebooks_table_has_no_words_in_its_name() -> None:
    words = [variant.words for variant in criteo.VARIANTS]
    assert words == [[], ["xla"], ["bfloat16"], ["bfloat16", "xla"]]


def test_the_training_benchmark_knows_recipes_with_a_seed_document_only() -> None:
    with pytest.raises(ConfigError, match="'movielens-torch'. Available: movielens, criteo-dlrm"):
        training.run(1, recipe="movielens-torch")


def test_a_benchmark_that_measures_no_recipe_refuses_one() -> None:
    command = [sys.executable, "-m", "bench", "vocabulary", "--recipe", "criteo-dlrm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "measures no recipe" in done.stderr


def test_the_serving_benchmark_of_the_readme_reports_its_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, but on little data: what it is typed as, and the file that it writes."""
    assert "`python -m bench serving`" in (ROOT / "README.md").read_text(encoding="utf-8")
    sizes = (1, 8, 32)
    short = {"num_rows": 10_000, "small_layers": True, "batch_sizes": sizes, "turn_s": 0.2, "concurrent_turn_s": 2.0}
    monkeypatch.setattr(serving, "run", partial(serving.run, **short))
    monkeypatch.setattr(sys, "argv", [str(ROOT / "bench" / "__main__.py"), "serving"])
    bench("serving", repeats=1, recipe="criteo-dlrm", json_file=tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["name"] == "serving"
    assert report["environment"]["command"].startswith("python -m bench serving")
    results, ratios = report["results"], report["ratios"]
    assert list(results) == [
        "rankline", "onnx", "fused", "onnx fused", "merlin-systems", "identity", "in process",
    ]  # fmt: skip
    ours, merlin = results["rankline"], results["merlin-systems"]
    assert next(iter(ratios)) == "p50_vs_merlin"
    assert "p50_over_floor" in ratios
    assert ratios["p50_vs_merlin"] == pytest.approx(merlin["p50_ms@1"] / ours["p50_ms@1"])
    assert ratios["p50_vs_merlin_8"] == pytest.approx(merlin["p50_ms@8"] / ours["p50_ms@8"])
    assert ratios["throughput_vs_merlin"] == pytest.approx(ours["rows_per_s@32"] / merlin["rows_per_s@32"])
    assert set(ours) == {f"{name}@{size}" for name in ("p50_ms", "p99_ms", "rows_per_s") for size in sizes} | {
        "requests_per_s@1x32"
    }


def test_the_stacks_benchmark_reports_its_ratios() -> None:
    # One request at a time: with 32 in flight, the slowest side answers none within a short turn.
    report = stacks.run(1, num_rows=20_000, turn_s=2.0, workers=1, loads=stacks.LOADS[:1])
    assert list(report.results) == ["rankline", "rankline, fused", "merlin-systems", "fastapi", "mlflow"]
    ours, peers = report.results["rankline"], {"merlin": "merlin-systems", "fastapi": "fastapi", "mlflow": "mlflow"}
    expected = {f"p50_vs_{name}": report.results[side]["p50_ms@1"] / ours["p50_ms@1"] for name, side in peers.items()}
    assert report.ratios == pytest.approx(expected)


def test_the_client_benchmark_reports_what_a_client_costs_and_whether_runs_agree() -> None:
    report = client.run(1, turn_s=0.5, num_runs=3, run_s=1.0)
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
            assert figures[f"pairs_{name}"] in (1, 2)
            assert figures[f"agreement_{name}"] in (0, 0.5, 1)
            num_pairs += figures[f"pairs_{name}"]
            num_agreeing += figures[f"agreement_{name}"] * figures[f"pairs_{name}"]
    assert report.ratios == {"agreement": pytest.approx(num_agreeing / num_pairs)}


def test_runs_agree_where_their_intervals_overlap_and_pairs_without_a_bound_are_not_counted() -> None:
    def result(interval_ns: tuple[int, int | None] | None) -> LoadResult:
        found = LoadResult.of_run(Run(load=Load(batch_size=1, concurrency=1), slices=(SliceRecord(),)), is_stable=True)
        low, high = interval_ns or (None, None)
        return replace(found, metrics={**found.metrics, "p50_ms": Estimate(value=1.0, low=low, high=high)})

    runs = [result(interval) for interval in ((1, 3), (2, 5), (5, 6), (1, 2), (3, 4))]
    assert client.pairs_that_agree(runs, "p50") == [True, True, False, False]
    assert client.pairs_that_agree([result(None), *runs, result((3, None))], "p50") == [True, True, False, False]
    assert client.pairs_that_agree(runs, "p99") == []


def test_sides_take_turns_and_the_first_does_not_count() -> None:
    seen: list[str] = []

    def side(name: str, figures: list[float]) -> float:
        seen.append(name)
        return figures.pop(0)

    one, other = [100.0, 1.0, 4.0, 3.0], [100.0, 2.0, 2.0, 3.0]
    rates = take_turns({"one": lambda: side("one", one), "other": lambda: side("other", other)}, repeats=3)
    assert seen == ["one", "other"] * 4
    assert rates == {"one": [1.0, 4.0, 3.0], "other": [2.0, 2.0, 3.0]}
    assert median_ratio(rates, "one", "other") == statistics.median([0.5, 2.0, 1.0])
