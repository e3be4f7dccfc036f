"""The benchmarks, on little data and in short turns: what they report, not how fast it is."""

import statistics
from dataclasses import replace

import pytest

from bench import client, loader, stacks, training
from bench.report import median_ratio, take_turns
from serving.benchmark.records import SliceRecord
from serving.benchmark.report import Load, LoadResult


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
    report = training.run(1, num_rows=250_000, turn_s=0.2)
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios == pytest.approx(
        {
            "vs_step_alone": rates["movielens"] / rates["movielens, one batch"],
            "vs_seed_path": rates["movielens"] / rates["seed path"],
            "vs_step_alone_seed_model": rates["movielens-seed"] / rates["movielens-seed, one batch"],
            "vs_seed_path_same_model": rates["movielens-seed"] / rates["seed path"],
        }
    )


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
    shares = [share for loop in ("closed loop", "open loop") for share in report.results[loop].values()]
    assert set(shares) <= {0.0, 0.5, 1.0}  # of two pairs
    assert report.ratios == {"agreement": pytest.approx(statistics.fmean(shares))}


def test_runs_agree_where_their_intervals_overlap() -> None:
    def result(interval_ns: tuple[int, int] | None) -> LoadResult:
        found = LoadResult.from_slices(Load(batch_size=1, concurrency=1), [SliceRecord()], is_stable=True)
        return replace(found, intervals_ms={} if interval_ns is None else {"p50": interval_ns})

    runs = [result(interval) for interval in ((1, 3), (2, 5), (5, 6), (1, 2), (3, 4))]
    assert client.share_of_pairs_that_agree(runs, "p50") == 0.5
    assert client.share_of_pairs_that_agree([*runs, result(None)], "p50") is None


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
