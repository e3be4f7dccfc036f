"""Trial runs of the benchmarks of loading and training."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.harness import synthetic_rows as rows
from bench.serving import tracking
from bench.training import criteo, distributed, loader, loaders, quality, sequences, tables, training
from bench.training.amazon import run_amazon
from rankline.training.models.auto import realmlp, trees
from rankline.workflows.core.errors import ConfigError
from tests.oracles.bench_reports import check_report

SMALL_SIM = {
    "embedding_dim": 4,
    "hidden": (8,),
    "stage_one_hidden": (8,),
    "aux_hidden": (8,),
    "gru_units": 8,
    "short_history": 2,  # each step of the recurrent layers is in the graph
}


@pytest.fixture(autouse=True)
def _few_movies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables 512 wide, of all of MovieLens' users and movies, take half a gigabyte for each side."""
    monkeypatch.setattr(rows, "NUM_USERS", 2_000)
    monkeypatch.setattr(rows, "NUM_MOVIES", 500)


def test_loader_benchmark() -> None:
    report = loader.run(1, sizes=(40_000, 200_000, 220_000), max_turn_s=0.1)
    sides = ["rankline", "rankline, 40,000 rows", "rankline, 220,000 rows"]
    peers = ["merlin-dataloader", "TFRecord, notebook", "TFRecord, tuned"]
    ratios = ["vs_merlin", "vs_tfrecord", "vs_tfrecord_tuned", "vs_arrow_decode"]
    ratios += ["memory_over_parquet", "keras3_fit_over_dataset"]
    others = [loader.IN_MEMORY, "keras 3, fit(loader)", "keras 3, fit(dataset)", "rankline, torch"]
    check_report(
        report,
        sides=["arrow decode", *sides, *others, *peers],
        ratios=[*ratios, "peak_memory_over_buffer", "first_batch_s", "scale_spread"],
    )
    by_size = [report.results[side]["rows_per_s"] for side in sides]
    assert report.ratios["scale_spread"] == pytest.approx(1 - min(by_size) / max(by_size))


def test_loaders_benchmark() -> None:
    peers = ("rankline", "PyTorch DataLoader", "tf.data", "arrays in memory")
    report = loaders.run(1, num_rows=100_000, peers=peers, max_turn_s=0.1)
    ratios = ["vs_pytorch_dataloader", "vs_tf_data", "vs_arrays_in_memory", "vs_best_loader"]
    check_report(report, sides=list(peers), ratios=ratios)
    assert report.ratios["vs_best_loader"] == min(report.ratios.values())


def test_loader_benchmark_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    report = loader.run(1, device="cpu", sizes=(1, 100_000, 1), max_turn_s=0.1)
    check_report(report, sides=["rankline", "DataLoader", "copies alone"], ratios=["vs_dataloader", "vs_copies_alone"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="device is 'cuda', but PyTorch finds no GPU"):
        loader.run(1, device="cuda")


def test_training_benchmark() -> None:
    sides = ["movielens", "movielens, one batch", "movielens-seed", "movielens-seed, one batch", "seed path"]
    ratios = ["vs_step_alone", "vs_seed_path", "vs_step_alone_seed_model", "vs_seed_path_same_model"]
    check_report(training.run_movielens(1, num_rows=10_000, batch_size=512, turn_s=0.05), sides=sides, ratios=ratios)
    with pytest.raises(ConfigError, match="'movielens-torch'. Available: movielens, criteo-dlrm"):
        training.run(1, recipe="movielens-torch")


def test_training_benchmark_of_criteo() -> None:
    assert [variant.words for variant in criteo.VARIANTS] == [[], ["xla"], ["bfloat16"], ["bfloat16", "xla"]]
    report = criteo.run_criteo(
        1,
        num_rows=4_000,
        variants=criteo.VARIANTS[:1],
        precisions=("float32", "bfloat16"),
        batch_size=256,
        turn_steps=2,
        turn_s=0.02,
    )
    sides = [
        f"{pipeline}{side}" for side in ("", ", small layers", ", no model") for pipeline in ("native", "accelerated")
    ]
    check_report(
        report,
        sides=[
            *(*sides, "products of matrices", "criteo-dlrm", "criteo-dlrm, one batch"),
            *("small layers, float32", "small layers, bfloat16"),
        ],
        ratios=[
            *("vs_tfrecord", "vs_tfrecord_beside_products", "vs_tfrecord_small_layers", "data_vs_tfrecord"),
            *("vs_step_alone", "amp_auc_difference"),
        ],
    )


def test_training_benchmark_of_amazon() -> None:
    report = run_amazon(1, num_rows=1_500, choices=SMALL_SIM, batch_size=64, turn_s=0.02)
    variants = ["", ", cached", ", ragged"]
    check_report(
        report,
        sides=[
            *("amazon-sim", "amazon-sim, in memory", *(f"tfrecord{variant}" for variant in variants)),
            *(f"{side}, {kind}" for kind in ("small layers", "no model") for side in ("amazon-sim", "tfrecord")),
        ],
        ratios=[
            *("vs_tfrecord", "vs_tfrecord_cached", "vs_tfrecord_ragged", "vs_tfrecord_small_layers"),
            *("data_vs_tfrecord", "vs_step_alone"),
        ],
    )


def test_benchmark_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--repeats 1"):
        sequences.run(1)
    monkeypatch.setattr(sequences, "PEERS", {"din": sequences.PEERS["din"]})  # without recurrent layers to build
    choices = {**SMALL_SIM, "epochs": 1, "batch_size": 128}
    report = sequences.run(2, num_rows=1_500, choices=choices, num_candidates=30)
    check_report(
        report,
        sides=["amazon-sim", "amazon-din", sequences.BEST, sequences.CANDIDATES, sequences.ROWS],
        ratios=["sim_minus_din_over_spread", "candidates_vs_rows"],
    )
    sim, din = (report.results[model] for model in ("amazon-sim", "amazon-din"))
    spread = max(sim["auc_range"], din["auc_range"])
    assert report.ratios["sim_minus_din_over_spread"] == pytest.approx((sim["auc"] - din["auc"]) / spread)


def test_quality_benchmark_ranks_for_the_same_users() -> None:
    peers = {name: grid[:2] for name, grid in quality.PEERS.items()}
    report = quality.run(1, recipe="movielens", num_rows=3_000, peers=peers, train={"epochs": 1})
    ranked = [f"{side}, ranking" for side in ("popularity", "als", "item-knn", "movielens")]
    sides = ["movielens", "bias of user and item", *ranked]
    check_report(report, sides=sides, ratios=["recall_vs_best_peer", "ndcg_vs_best_peer"])
    assert len({report.results[side]["users"] for side in ranked}) == 1
    for side in sides[:2]:
        assert 0.6 < report.results[side]["auc"] < 1


def test_tracking_benchmark() -> None:
    check_report(tracking.run(1, num_runs=3), sides=["runs", "runs, all", "compare"], ratios=["looking_at_1000_runs_s"])


def test_bytes_sent_follow_the_touched_rows_and_not_the_table() -> None:
    pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")
    results, ratios = distributed.measure_bytes(
        table_rows=(10_000, 40_000), touched_rows=(256, 4_096), num_steps=4, idle_s=0.2
    )
    assert len(results) == 3  # the larger of either with both of the other
    for figures in results.values():
        assert 0 < figures["sparse_bytes"] < figures["dense_bytes"]
    row_bytes = 16 * 4 + 4
    assert results["10,000 rows, 4,096 touched"]["sparse_bytes"] == pytest.approx(4_096 * row_bytes, rel=0.25)
    assert results["40,000 rows, 256 touched"]["dense_bytes"] > 40_000 * 16 * 4
    assert ratios["bytes_growth_with_table"] == pytest.approx(1, abs=0.3)
    assert ratios["sparse_over_dense_bytes"] < 0.2


def test_tables_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_HIDDEN": (8, 8), "_MIN_STEPS": 50, "_MAX_STEPS": 50, "_IS_COMPILED": False}.items():
        monkeypatch.setattr(realmlp, name, value)
    for learner in (trees.CatBoost, trees.LightGBM):
        monkeypatch.setattr(learner, "_MAX_TREES", 20)
    rng = np.random.default_rng(0)
    kind, size = rng.choice(list("abc"), 120), rng.normal(size=120)
    cakes = pd.DataFrame({"kind": kind, "size": size, "price": size + 2 * (kind == "a")})
    cakes[:90].to_csv(tmp_path / "cakes_train.csv", index=False)
    cakes[90:].to_csv(tmp_path / "cakes_test.csv", index=False)
    report = tables.run(1, data=tmp_path, sizes=(0, 60), peers=("lightgbm", "catboost"), timed_shape=(120, 4))
    assert list(report.results) == ["cakes@all", "cakes@60", "cakes, served", "native_identity, served"]
    assert set(report.results["cakes@60"]) == {
        f"{side}_{figure}" for side in ("rankline", "lightgbm", "catboost") for figure in ("error", "s")
    }
    assert report.results["cakes@all"]["rankline_error"] < cakes["price"].std()
    assert report.ratios["tables"] == 1
    assert report.ratios["worst_vs_catboost"] > 0
    assert {"fit_120x4_s", "mean_rank", "mean_rank_catboost"} < set(report.ratios)
    with pytest.raises(ConfigError, match="expected a directory of CSV files"):
        tables.run(1, data=tmp_path / "none")
