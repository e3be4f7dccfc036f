"""Data that somebody else prepared, from files to a served score by the ids of those files."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.commands.command_line import rankline
from tests.oracles.tolerance import SCORE_ROUNDING

USERS, ITEMS, CATEGORIES, WIDTH = 30, 80, 6, 8
COLUMNS = ("label", "uid", "item", "cat", "item_pos", "cat_pos", "item_neg", "cat_neg")
SPEC = f"""
feature_spec:
  label: {{dtype: int64}}
  uid: {{dtype: int64, cardinality: {USERS}}}
  item: {{dtype: int64, cardinality: {ITEMS}}}
  cat: {{dtype: int64, cardinality: {CATEGORIES}}}
  item_pos: {{dtype: int64, cardinality: {ITEMS}, dimensions: [{WIDTH}]}}
  cat_pos: {{dtype: int64, cardinality: {CATEGORIES}, dimensions: [{WIDTH}]}}
  item_neg: {{dtype: int64, cardinality: {ITEMS}, dimensions: [{WIDTH}]}}
  cat_neg: {{dtype: int64, cardinality: {CATEGORIES}, dimensions: [{WIDTH}]}}
source_spec:
  train: [{{type: parquet, features: [{", ".join(COLUMNS)}], files: [train/part.0.parquet]}}]
  test: [{{type: parquet, features: [{", ".join(COLUMNS)}], files: [test/part.0.parquet]}}]
channel_spec:
  label: [label]
  user_features: [uid]
  target_item_features: [item, cat]
  positive_history: [item_pos, cat_pos]
  negative_history: [item_neg, cat_neg]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Parquet files with the columns of NVIDIA's SIM, zeros before the ids."""
    rng = np.random.default_rng(4)
    category = np.append(0, rng.integers(1, CATEGORIES + 1, ITEMS))
    for mapping, num_rows in (("train", 600), ("test", 200)):
        lengths = rng.integers(1, WIDTH + 1, num_rows)
        is_item = np.arange(WIDTH) >= WIDTH - lengths[:, None]
        item, history, negatives = (rng.integers(1, ITEMS + 1, shape) for shape in (num_rows, *[is_item.shape] * 2))
        columns = {"label": np.arange(num_rows) % 2, "uid": rng.integers(1, USERS + 1, num_rows)}
        columns |= {"item": item, "cat": category[item]}
        for name, ids in (("pos", history * is_item), ("neg", negatives * is_item)):
            columns |= {f"item_{name}": ids.tolist(), f"cat_{name}": category[ids].tolist()}
        (tmp_path / "mine" / mapping).mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "mine" / mapping / "part.0.parquet")
    (tmp_path / "mine" / "feature_spec.yaml").write_text(SPEC)
    return tmp_path


def test_a_model_of_imported_data_is_served_by_its_ids(directory: Path) -> None:
    small = ["--epochs", "1", "--hidden", "8", "--embedding-dim", "4", "--batch-size", "128"]
    for command in (
        ["import", "amazon-din", "mine"],
        ["train", "amazon-din", *small],
        ["export", "amazon-din"],
    ):
        done = rankline(*command, cwd=directory)
        assert done.returncode == 0, done.stderr
    row = {"uid": 3, "item": 7, "cat": 2, "item_pos": [5, 6], "cat_pos": [1, 1]}
    longer = {**row, "item_pos": list(range(1, WIDTH + 1)), "cat_pos": [1] * WIDTH}
    too_long = {**row, "item_pos": [9, *longer["item_pos"]], "cat_pos": [4, *longer["cat_pos"]]}  # type: ignore[misc]
    uneven = {**row, "cat_pos": [4, 1, 1]}
    rows = [row, uneven, longer, too_long, {**row, "item": ITEMS + 1}, {**row, "item": 0}]
    lines = "".join(json.dumps(each) + "\n" for each in rows)
    done = rankline("predict", "amazon-din", "--input", "-", cwd=directory, stdin=lines)
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line)["score"] for line in done.stdout.splitlines()]
    assert scores[::2] == pytest.approx(scores[1::2], abs=SCORE_ROUNDING)
    assert len({round(score, 6) for score in scores[::2]}) == 3
