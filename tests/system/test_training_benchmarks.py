"""Trial runs of the benchmarks of loading and training."""

import statistics

import pytest

from bench import criteo, loader, movielens, rows, tracking, training
from bench.report import median_ratio, take_turns
from workflows.errors import ConfigError


@pytest.fixture(autouse=True)
def _few_movies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables 512 wide, of all of MovieLens' users and movies, take half a gigabyte for each side."""
    monkeypatch.setattr(rows, "NUM_USERS", 2_000)
    monkeypatch.setattr(rows, "NUM_MOVIES", 500)


def test_the_loader_benchmark_reports_its_ratios() -> None:
    report = loader.run(1, sizes=(40_000, 200_000, 220_000), max_turn_s=0.1)
    assert list(report.ratios) == [
        "vs_merlin", "vs_tfrecord", "vs_tfrecord_tuned", "vs_arrow_decode", "peak_memory_over_buffer", "first_batch_s",
        "scale_spread",
    ]  # fmt: skip
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios["vs_merlin"] == pytest.approx(rates["rankline"] / rates["merlin-dataloader"])
    assert report.ratios["vs_arrow_decode"] == pytest.approx(rates["rankline"] / rates["arrow decode"])
    by_size = [rates[side] for side in ("rankline", "rankline, 40,000 rows", "rankline, 220,000 rows")]
    assert report.ratios["scale_spread"] == pytest.approx(1 - min(by_size) / max(by_size))
    assert report.results["rankline"]["peak_memory_bytes"] > 0


def test_the_training_benchmark_reports_its_ratios() -> None:
    report = movielens.run_movielens(1, num_rows=10_000, batch_size=512, turn_s=0.05)
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
        turn_s=0.05,
    )
    runs = ["native, bfloat16", "accelerated, bfloat16"]
    small = ["native, small layers", "accelerated, small layers"]
    products = "products of matrices"
    others = ["native, no model", "accelerated, no model", products, "criteo-dlrm", "criteo-dlrm, one batch"]
    precisions = ["small layers, float32", "small layers, bfloat16"]
    assert list(report.results) == [*runs, *small, *others, *precisions]
    assert all(0 < report.results[side]["auc"] < 1 for side in runs)
    rates = {side: report.results[side]["rows_per_s"] for side in [*runs, *small, *others]}
    plain, mixed = (report.results[side]["auc"] for side in precisions)
    assert plain > 0.6
    beside = {side: 1 / max(1 / rates[side] - 1 / rates[products], 1e-9) for side in runs}
    assert report.ratios == pytest.approx(
        {
            "vs_tfrecord_bfloat16": rates["accelerated, bfloat16"] / rates["native, bfloat16"],
            "vs_tfrecord_beside_products": beside[runs[1]] / beside[runs[0]],
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


def test_the_loader_benchmark_measures_what_comes_to_a_device() -> None:
    report = loader.run(1, device="cpu", sizes=(1, 100_000, 1), max_turn_s=0.1)
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios["vs_dataloader"] == pytest.approx(rates["rankline"] / rates["DataLoader"])
    assert report.ratios["vs_copies_alone"] == pytest.approx(rates["rankline"] / rates["copies alone"])


def test_a_device_that_is_not_there_is_refused_before_rows_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="device is 'cuda', but PyTorch sees no GPU here"):
        loader.run(1, device="cuda")


def test_the_tracking_benchmark_reports_its_ratios() -> None:
    report = tracking.run(1, num_runs=3)
    assert list(report.results) == ["runs", "runs, all", "compare"]
    assert report.ratios == {"looking_at_1000_runs_s": max(side["seconds"] for side in report.results.values())}
