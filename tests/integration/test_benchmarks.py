"""The benchmarks that have no server, on little data: what they report, not how fast it is."""

import statistics

import pytest

from bench import loader, training
from bench.report import median_ratio, take_turns


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
