"""Rows with histories in which users stay with one category: a positive target is of the history's, a negative not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from rankline.training.trainers.keras import TensorFlowTrainer
from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source, SpecMetadata
from rankline.workflows.storage.artifacts import publish

NUM_USERS, NUM_ITEMS, NUM_CATEGORIES, MAX_LENGTH = 40, 64, 7, 12
CATEGORIES = 3 + np.arange(NUM_ITEMS) % (NUM_CATEGORIES - 3)
"""Of each item; ids begin at 3."""

LISTS = ("item_id_pos", "category_id_pos", "item_id_neg", "category_id_neg")


def make_table(num_rows: int, seed: int) -> pa.Table:
    """Rows of 0 to `MAX_LENGTH` items before the target, as prepared data holds them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, MAX_LENGTH + 1, num_rows)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    liked, label = rng.integers(3, NUM_CATEGORIES, num_rows), rng.integers(0, 2, num_rows)
    target = _items(rng, np.where(label == 1, liked, 3 + (liked - 2) % (NUM_CATEGORIES - 3)))
    before = _items(rng, np.repeat(liked, lengths))
    other = rng.integers(3, NUM_ITEMS, len(before))
    lists = (before, CATEGORIES[before], other, CATEGORIES[other])
    return pa.table(
        {
            "user_id": rng.integers(3, NUM_USERS, num_rows),
            "item_id_trgt": target,
            "category_id_trgt": CATEGORIES[target],
            **{name: pa.ListArray.from_arrays(offsets, ids) for name, ids in zip(LISTS, lists, strict=True)},
            "label": label.astype(np.float32),
        }
    )


def make_spec(sources: dict[str, Source] | None = None) -> FeatureSpec:
    sizes = {"user_id": NUM_USERS, "item_id": NUM_ITEMS, "category_id": NUM_CATEGORIES}
    names = ("user_id", "item_id_trgt", "category_id_trgt", *LISTS)
    features = [
        Feature(
            name=name,
            dtype="int64",
            cardinality=next(size for start, size in sizes.items() if name.startswith(start)),
            embedding_dim=8,
            is_list=name in LISTS,
            max_length=MAX_LENGTH if name in LISTS else None,
        )
        for name in names
    ]
    return FeatureSpec(
        features=(*features, Feature(name="label", dtype="float32")),
        channels={
            "label": ("label",),
            "user_features": names[:1],
            "target_item_features": names[1:3],
            "positive_history": LISTS[:2],
            "negative_history": LISTS[2:],
        },
        sources=sources or {},
        metadata=SpecMetadata(group_by="user_id"),
    )


def make_prepared(directory: Path, *, num_train: int = 1200, num_valid: int = 400) -> Path:
    """Publish prepared data, whose validation rows have no negatives: nobody asks for them."""
    with publish(directory, "prepared-data") as staging:
        sources = {}
        for split, num_rows, seed in (("train", num_train, 1), ("valid", num_valid, 2)):
            (staging / split).mkdir()
            rows = make_table(num_rows, seed)
            rows = rows if split == "train" else rows.drop(list(LISTS[2:]))
            pq.write_table(rows, staging / split / "part_0.parquet", row_group_size=200)
            sources[split] = Source(files=(f"{split}/part_0.parquet",), num_rows=num_rows)
        (staging / "feature_spec.yaml").write_text(make_spec(sources).to_yaml())
        (staging / "workflow").mkdir()
        (staging / "workflow" / "metadata.json").write_text(json.dumps({"versions": {}}))
    return directory


def keras_batch(rows: pa.Table, spec: FeatureSpec | None = None) -> dict[str, Any]:
    """Rows as the loader gives them, with the columns of a spec."""
    batch = {}
    for feature in (spec or make_spec()).categorical:
        column = rows[feature.name].combine_chunks()
        if not feature.is_list:
            batch[feature.name] = tf.constant(column.to_numpy()[:, None])
            continue
        batch[f"{feature.name}__values"] = tf.constant(column.flatten().to_numpy()[:, None], tf.int64)
        batch[f"{feature.name}__nnzs"] = tf.constant(column.value_lengths().to_numpy()[:, None], tf.int32)
    return batch


def batches_of(prepared: Path, batch_size: int = 100, *, seed: int = 0) -> list[tuple[Any, Any]]:
    """The training split with negatives, shuffled."""
    spec = FeatureSpec.read(prepared)
    return list(TensorFlowTrainer.batches(prepared, spec, "train", batch_size, shuffle=True, seed=seed))


def _items(rng: np.random.Generator, categories: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """An item of each category, at random."""
    step = NUM_CATEGORIES - 3
    first = 3 + (categories - CATEGORIES[3]) % step
    return (first + step * rng.integers(0, (NUM_ITEMS - 3) // step, len(categories))).astype(np.int64)
