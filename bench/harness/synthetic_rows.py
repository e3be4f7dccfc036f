"""Generates any number of encoded, MovieLens-like rows for benchmarks, in files like those of `prepare`."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankline.workflows.schema.feature_spec import Feature, FeatureSpec, Source

NUM_USERS, NUM_MOVIES, NUM_GENRES = 162_544, 56_604, 22  # sizes of MovieLens-25M, including reserved ids
ROWS_PER_FILE = 2_500_000
ROWS_PER_GROUP = 65_536
_FIRST_ID = 3
_GENRES_PER_MOVIE = (0.29, 0.33, 0.24, 0.10, 0.03, 0.01)
_MOVIE_SKEW = 0.8  # exponent of the power law of ratings per movie


def write_rows(directory: Path, num_rows: int, seed: int = 0) -> FeatureSpec:
    """Write rows as Parquet below `directory`/train.

    Users are uniformly distributed, movies follow a power law, a movie always has the same genres, and labels are
    random.
    """
    rng = np.random.default_rng(seed)
    (directory / "train").mkdir(parents=True)
    num_genres = rng.choice(len(_GENRES_PER_MOVIE), NUM_MOVIES, p=_GENRES_PER_MOVIE) + 1
    genres = pa.array([rng.choice(NUM_GENRES - _FIRST_ID, count, replace=False) + _FIRST_ID for count in num_genres])
    files = []
    for number, start in enumerate(range(0, num_rows, ROWS_PER_FILE)):
        size = min(ROWS_PER_FILE, num_rows - start)
        # The inverse of the power law's distribution function maps uniform draws to skewed ones.
        ranks = (NUM_MOVIES - _FIRST_ID) * rng.random(size) ** (1 / (1 - _MOVIE_SKEW))
        movies = ranks.astype(np.int64) + _FIRST_ID
        table = pa.table(
            {
                "userId": rng.integers(_FIRST_ID, NUM_USERS, size),
                "movieId": movies,
                "genres": genres.take(pa.array(movies)),
                "rating": (rng.random(size) < 0.5).astype(np.float32),
            }
        )
        files.append(f"train/part_{number}.parquet")
        pq.write_table(table, directory / files[-1], row_group_size=ROWS_PER_GROUP)
    return FeatureSpec(
        features=(
            Feature(name="userId", dtype="int64", cardinality=NUM_USERS, embedding_dim=512),
            Feature(name="movieId", dtype="int64", cardinality=NUM_MOVIES, embedding_dim=512),
            Feature(
                name="genres",
                dtype="int64",
                cardinality=NUM_GENRES,
                embedding_dim=16,
                is_list=True,
                max_length=len(_GENRES_PER_MOVIE),
            ),
            Feature(name="rating", dtype="float32"),
        ),
        channels={"categorical": ("userId", "movieId", "genres"), "label": ("rating",)},
        sources={"train": Source(files=tuple(files), num_rows=num_rows)},
    )
