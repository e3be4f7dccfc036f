"""Prepared rows with several labels, of every task, some of them missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source
from rankline.workflows.schema.targets import MULTICLASS, REGRESSION, Head
from rankline.workflows.storage.artifacts import publish
from tests.factories.training.ratings import make_rows, make_spec

HEADS = (
    Head("rating"),
    Head("price, €?", REGRESSION, weight=2.0, mean=100.0, deviation=20.0),
    Head("kind", MULTICLASS, ("a", "b", "c")),
)
MANY_ROWS = 600


def spec_of(heads: tuple[Head, ...], sources: dict[str, Source] | None = None) -> FeatureSpec:
    spec = make_spec(sources)
    return replace(
        spec,
        features=(*spec.features[:-1], *(Feature(name=head.column, dtype="float32") for head in heads)),
        channels={**spec.channels, "label": tuple(head.column for head in heads)},
        metadata=replace(spec.metadata, heads=heads),
    )


def with_labels(table: pa.Table, heads: tuple[Head, ...]) -> pa.Table:
    """A price and a kind that follow the movie; each row lacks one label of several."""
    movie = table["movieId"].to_numpy()
    labels = {
        "rating": table["rating"].to_numpy(),
        "price, €?": 100 + 20 * np.sin(movie),
        "kind": (movie % 3).astype(np.float64),
    }
    table = table.drop(["rating"])
    for number, head in enumerate(heads):
        lacks = (np.arange(len(movie)) % len(heads) == number) & (len(heads) > 1)
        table = table.append_column(head.column, pa.array(labels[head.column], pa.float32(), mask=lacks))
    return table


def make_prepared(directory: Path, heads: tuple[Head, ...]) -> Path:
    with publish(directory, "prepared-data") as staging:
        sources = {}
        for split, num_rows, seed in (("train", 4 * MANY_ROWS, 1), ("valid", MANY_ROWS, 2)):
            (staging / split).mkdir()
            pq.write_table(with_labels(make_rows(num_rows, seed), heads), staging / split / "part_0.parquet")
            sources[split] = Source(files=(f"{split}/part_0.parquet",), num_rows=num_rows)
        (staging / "feature_spec.yaml").write_text(spec_of(heads, sources).to_yaml())
        (staging / "workflow").mkdir()
    return directory
