"""Prepared ratings in which users and movies have planted tastes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source, SpecMetadata
from rankline.workflows.storage.artifacts import publish

NUM_USERS, NUM_MOVIES, NUM_GENRES = 60, 40, 8


def make_rows(num_rows: int, seed: int) -> pa.Table:
    """Encoded rows: ids from 3, lists of zero to four genres, a label that follows the ids."""
    rng = np.random.default_rng(seed)
    user, movie = rng.integers(3, NUM_USERS, num_rows), rng.integers(3, NUM_MOVIES, num_rows)
    lengths = rng.integers(0, 5, num_rows)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    logit = 2.0 * np.sin(user) + 2.0 * np.cos(3 * movie)
    return pa.table(
        {
            "userId": user,
            "movieId": movie,
            "genres": pa.ListArray.from_arrays(offsets, rng.integers(3, NUM_GENRES, offsets[-1])),
            "age": rng.random(num_rows, dtype=np.float32),
            "rating": (rng.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(np.float32),
        }
    )


def make_spec(sources: dict[str, Source] | None = None) -> FeatureSpec:
    return FeatureSpec(
        features=(
            Feature(name="userId", dtype="int64", cardinality=NUM_USERS, embedding_dim=16),
            Feature(name="movieId", dtype="int64", cardinality=NUM_MOVIES, embedding_dim=12),
            Feature(name="genres", dtype="int64", cardinality=NUM_GENRES, embedding_dim=4, is_list=True, max_length=4),
            Feature(name="age", dtype="float32"),
            Feature(name="rating", dtype="float32"),
        ),
        channels={"categorical": ("userId", "movieId", "genres"), "continuous": ("age",), "label": ("rating",)},
        sources=sources or {},
        metadata=SpecMetadata(group_by="userId"),
    )


def make_prepared(
    directory: Path,
    *,
    num_train: int = 4000,
    num_valid: int = 1000,
    change: Callable[[pa.Table], pa.Table] | None = None,
    spec: FeatureSpec | None = None,
) -> Path:
    """Publish prepared data: two files per split, several row groups per file."""
    with publish(directory, "prepared-data") as staging:
        sources = {}
        for split, num_rows, seed in (("train", num_train, 1), ("valid", num_valid, 2)):
            (staging / split).mkdir()
            table = make_rows(num_rows, seed)
            table = change(table) if change else table
            names = []
            for number in range(2):
                names.append(f"{split}/part_{number}.parquet")
                half = table.slice(number * num_rows // 2, num_rows // 2)
                pq.write_table(half, staging / names[-1], row_group_size=max(1, num_rows // 6))
            sources[split] = Source(files=tuple(names), num_rows=num_rows)
        (staging / "feature_spec.yaml").write_text(replace(spec or make_spec(), sources=sources).to_yaml())
        (staging / "workflow").mkdir()
        (staging / "workflow" / "metadata.json").write_text(json.dumps({"versions": {}}))
    return directory
