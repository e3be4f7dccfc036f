"""Generates any number of rows for benchmarks.

`write_rows` writes encoded, MovieLens-like rows in files like those of `prepare`, `write_click_log` a raw click log
that resembles real data: string ids, nulls, a timestamp, lists, 20 columns.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
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

    Users are uniformly distributed, movies follow a power law, a movie's genres are fixed, and labels are random.
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


_START_S = 1_767_225_600  # 2026-01-01
_SPAN_S = 30 * 86_400
_BLOCK_ROWS = 1 << 17
_COUNTRIES = ["US", "DE", "FR", "NA", "BR", "IN", "JP", "GB"]
_WORDS = ["news", "sports", "music", "movies", "games", "food", "travel", "cars"]


def write_click_log(path: Path, num_rows: int, seed: int = 1) -> None:
    """Write rows ordered by time; users and items have latent tastes, so that there is a signal to learn."""
    rng = np.random.default_rng(seed)
    num_users, num_items = max(100, num_rows // 50), max(50, num_rows // 200)
    users, items = rng.normal(size=num_users), rng.normal(size=num_items)
    writer: pa_csv.CSVWriter | None = None
    for first in range(0, num_rows, _BLOCK_ROWS):
        size = min(_BLOCK_ROWS, num_rows - first)
        table = _rows(rng, users, items, first, size, num_rows)
        writer = writer or pa_csv.CSVWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _rows(
    rng: np.random.Generator,
    users: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    items: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    first: int,
    size: int,
    num_rows: int,
) -> pa.Table:
    user = (len(users) * rng.random(size) ** 2).astype(np.int64)
    item = (len(items) * rng.random(size) ** 2).astype(np.int64)
    position, price = rng.integers(1, 11, size), np.round(rng.lognormal(3, 1, size), 2)
    logit = -2.0 + 0.8 * users[user] + 0.8 * items[item] - 0.15 * position - 0.1 * np.log(price)
    seconds = _START_S + (first + np.arange(size)) * _SPAN_S / num_rows
    times = pa.array((seconds * 1e6).astype(np.int64)).cast(pa.timestamp("us")).cast(pa.timestamp("s"), safe=False)

    def with_nulls(values: pa.Array, share: float) -> pa.Array:
        return pa.array(values.to_pandas().where(rng.random(size) >= share, None), values.type, from_pandas=True)

    def chosen(names: list[str]) -> pa.Array:
        return pa.array(names).take(pa.array(rng.integers(0, len(names), size)))

    columns = {
        "ts": times.cast(pa.string()),
        "user_id": pa.array([f"u{number:07x}" for number in user]),
        "item_id": pa.array([f"item-{number}" for number in item]),
        "session_id": pa.array([f"s{number:06d}" for number in user * 7 % max(1, num_rows // 20)]),
        "country": with_nulls(chosen(_COUNTRIES), 0.02),
        "device": chosen(["phone", "tablet", "desktop"]),
        "os": with_nulls(chosen(["ios", "android", "windows", "linux", "mac"]), 0.1),
        "browser": chosen(["chrome", "safari", "firefox", "edge"]),
        "category": pa.array(_WORDS).take(pa.array(item % len(_WORDS))),
        "tags": pa.array([f"{_WORDS[n % 8]}|{_WORDS[n // 8 % 8]}" for n in item]),
        "position": pa.array(position),
        "price": with_nulls(pa.array(price), 0.05),
        "age": with_nulls(pa.array(18 + user % 60), 0.2),
        "is_member": pa.array(user % 3 == 0),
        "num_visits": pa.array(rng.poisson(5, size)),
        "dwell_s": with_nulls(pa.array(np.round(rng.exponential(30, size), 1)), 0.3),
        "campaign": with_nulls(chosen([f"c{n}" for n in range(200)]), 0.5),
        "referrer": with_nulls(chosen(["search", "mail", "social", "direct"]), 0.15),
        "score_before": pa.array(np.round(rng.normal(size=size), 3)),
        "click": pa.array((rng.random(size) < 1 / (1 + np.exp(-logit))).astype(np.int64)),
    }
    return pa.table(columns)
