"""The benchmarks of data with histories, on little data and in short turns: what they report, not how fast it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import amazon, sequences
from workflows.errors import ConfigError
from workflows.feature_spec import HISTORY, LABEL, TARGET, Feature, FeatureSpec

SMALL: dict[str, Any] = {
    "embedding_dim": 4,
    "hidden": (8,),
    "stage_one_hidden": (8,),
    "aux_hidden": (8,),
    "gru_units": 8,
    "short_history": 2,  # each step of the recurrent layers is in the graph
}
NUM_ROWS = 1_500


def test_the_benchmark_of_sequences_reports_its_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "PEERS", {"din": sequences.PEERS["din"]})  # without recurrent layers to build
    sizes = (16,)  # XLA compiles each model anew for each
    report = sequences.run(
        2,
        num_rows=NUM_ROWS,
        choices=SMALL | {"epochs": 1, "batch_size": 128},
        batch_sizes=sizes,
        num_candidates=30,
        turn_s=0.02,
    )
    models = ["amazon-sim", "amazon-din"]
    assert list(report.results) == [*models, sequences.BEST, sequences.CANDIDATES, sequences.ROWS]
    for model in models:
        figures = report.results[model]
        assert list(figures) == ["auc", "auc_std", "auc_range", *(f"samples_per_s@{size}" for size in sizes)]
        assert 0 < figures["auc"] < 1
        assert figures["auc_std"] == pytest.approx(figures["auc_range"] / 2**0.5)  # of two seeds
    assert 0.5 < report.results[sequences.BEST]["auc"] < 1
    sim, din = (report.results[model] for model in models)
    spread = max(sim["auc_range"], din["auc_range"])
    assert report.ratios["sim_minus_din_over_spread"] == pytest.approx((sim["auc"] - din["auc"]) / spread)
    assert report.ratios["candidates_vs_rows"] > 0
    assert report.ratios["resume_difference"] == 0


def test_one_seed_has_no_spread() -> None:
    with pytest.raises(ConfigError, match="--repeats 1"):
        sequences.run(1)


def test_the_training_benchmark_of_amazon_reports_its_ratios() -> None:
    report = amazon.run_amazon(1, num_rows=NUM_ROWS, choices=SMALL, batch_size=64, turn_s=0.02)
    rates = {side: figures["rows_per_s"] for side, figures in report.results.items()}
    assert report.ratios == pytest.approx(
        {
            "vs_tfrecord": rates["amazon-sim"] / rates["tfrecord"],
            "vs_tfrecord_cached": rates["amazon-sim"] / rates["tfrecord, cached"],
            "vs_tfrecord_ragged": rates["amazon-sim"] / rates["tfrecord, ragged"],
            "vs_tfrecord_small_layers": rates["amazon-sim, small layers"] / rates["tfrecord, small layers"],
            "data_vs_tfrecord": rates["amazon-sim, no model"] / rates["tfrecord, no model"],
            "vs_step_alone": rates["amazon-sim"] / rates["amazon-sim, in memory"],
        }
    )


def test_the_records_of_the_document_hold_the_same_rows_in_full_blocks(tmp_path: Path) -> None:
    histories = [[5], [6, 7, 8], [9, 3], [4]]
    table = pa.table(
        {
            "item_id_trgt": pa.array([3, 4, 5, 6]),
            "item_id_pos": pa.array(histories, pa.list_(pa.int64())),
            "label": pa.array([1, 0, 1, 0], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "part.parquet")
    spec = FeatureSpec(
        features=(
            Feature(name="item_id_trgt", dtype="int64", cardinality=10, embedding_dim=4),
            Feature(name="item_id_pos", dtype="int64", cardinality=10, embedding_dim=4, is_list=True, max_length=4),
            Feature(name="label", dtype="float32"),
        ),
        channels={TARGET: ("item_id_trgt",), HISTORY: ("item_id_pos",), LABEL: ("label",)},
    )
    records = amazon.write_records([tmp_path / "part.parquet"], spec, tmp_path / "rows.tfrecord", block_rows=3)
    ((inputs, labels),) = amazon.document_dataset(records, spec, batch_size=3)
    np.testing.assert_array_equal(labels, [[1], [0], [1]])
    np.testing.assert_array_equal(inputs["item_id_trgt"], [[3], [4], [5]])
    np.testing.assert_array_equal(inputs["item_id_pos__nnzs"], [[1], [3], [2]])
    np.testing.assert_array_equal(inputs["item_id_pos__values"], [[item] for row in histories[:3] for item in row])
