"""Synthetic data in MovieLens format with planted tastes and a known best attainable AUC.

Ratings are drawn from an ordered logit model. For a user u and a movie m with genres G,
    logit(u, m) = bias(u) + quality(m) + sum of taste(u, g) for g in G / sqrt(|G|)
and the rating is determined by where logit + logistic noise falls between fixed thresholds. The threshold between 3.0
and 3.5 stars is zero, so P(rating > 3) = sigmoid(logit), and no model can rank the ratings better than the logit does.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from rankline.workflows.core.errors import ConfigError
from rankline.workflows.core.progress import SILENT, Progress
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.movielens.reader import CATALOG_SCHEMA, RATINGS_SCHEMA
from rankline.workflows.data.planted_model import (
    check_size,
    clear_truth,
    lognormal_shares,
    long_tailed_counts,
    write_truth,
)
from rankline.workflows.nvt.keys import sorted_distinct

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MIN_ROWS_PER_USER, _ACTIVITY_SD, _MAX_OVER_MEAN = 20, 1.4, 12  # the minimum is MovieLens's
_POPULARITY_SD = 1.6
_ROWS_PER_BLOCK = 1_000_000

# Numbers of rows, users and movies in ml-latest-small and ml-25m.
_SMALL = (100_836, 610, 9_742)
_LARGE = (25_000_095, 162_541, 62_423)

# Genre → share of the movies of ml-latest-small with that genre, and shares of movies with 1, 2, … 6 genres.
_GENRES = {
    "Action": 0.188, "Adventure": 0.130, "Animation": 0.063, "Children": 0.068, "Comedy": 0.386, "Crime": 0.123,
    "Documentary": 0.045, "Drama": 0.448, "Fantasy": 0.080, "Film-Noir": 0.009, "Horror": 0.100, "IMAX": 0.016,
    "Musical": 0.034, "Mystery": 0.059, "Romance": 0.164, "Sci-Fi": 0.101, "Thriller": 0.194, "War": 0.039,
    "Western": 0.017,
}  # fmt: skip
_GENRES_PER_MOVIE = (0.29, 0.33, 0.24, 0.10, 0.03, 0.01)

# Standard deviations over the rows; together they determine the best AUC.
_BIAS_SD, _QUALITY_SD, _TASTE_SD = 0.9, 0.9, 0.9
# Thresholds between 0.5, 1.0, … 5.0 stars, chosen to give about the same distribution of stars as MovieLens.
_THRESHOLDS = np.array([-4.95, -3.75, -3.3, -2.2, -1.62, 0.0, 0.63, 2.15, 2.9])
_STARS = [f"{half / 2:.1f}" for half in range(1, 11)]

_FIRST_SECOND, _LAST_SECOND = 820_454_400, 1_577_836_800  # 1996 to 2020
_ADJECTIVES = ("Blue", "Broken", "Distant", "Électrique", "Golden", "Hidden", "Last", "Quiet", "Silver", "Winter")
_NOUNS = ("Bridge", "Café", "Letter", "Lighthouse", "Memory", "Mountain", "Orchard", "Railway", "Stranger", "Voyage")

_PLAIN = pa_csv.WriteOptions(include_header=False, quoting_style="none")


@dataclass(frozen=True, kw_only=True)
class GeneratedTruth:
    best_auc: float  # AUC of the true probabilities against the drawn labels, over all rows
    positive_rate: float  # share of rows with a rating above 3
    num_users: int  # users, each with at least 20 rows
    num_movies: int  # movies in the catalog; some have no rating


@dataclass(frozen=True, kw_only=True)
class _World:
    rows_per_user: Ints  # shape (num_users,)
    popularity: Floats  # weights that sum to 1, shape (num_movies,)
    movie_ids: Ints  # ascending with gaps, shape (num_movies,)
    genres: npt.NDArray[np.bool_]  # mask of each movie's genres, shape (num_movies, num_genres)
    bias: Floats  # shape (num_users,)
    quality: Floats  # shape (num_movies,)
    taste: Floats  # shape (num_users, num_genres)
    joined_at: Floats  # seconds since 1970, shape (num_users,)
    active_s: Floats  # time span of each user's ratings, shape (num_users,)


def generate_movielens(
    directory: Path, *, num_rows: int, seed: int, cardinality_scale: float = 1.0, progress: Progress = SILENT
) -> GeneratedTruth:
    """Write ratings.csv and movies.csv in the layout of ml-latest, then truth.json.

    The same arguments give the same bytes. The numbers of users and movies grow with the rows as in MovieLens; each
    user has at least 20. Memory: one block of a million rows, plus about 50 bytes per row to compute the AUC.
    """
    check_size(num_rows, seed)
    rng = np.random.default_rng(seed)
    world = _make_world(num_rows, cardinality_scale, rng)
    clear_truth(directory)
    _write_movies(directory / "movies.csv", world, rng)
    labels = np.empty(num_rows, dtype=np.bool_)
    logits = np.empty(num_rows)
    done = 0
    with (directory / "ratings.csv").open("wb") as stream:
        stream.write((",".join(RATINGS_SCHEMA.names) + "\n").encode())
        for users, movies in _draw_pairs(world, rng):
            end = done + len(users)
            logits[done:end] = _logits(world, users, movies)
            stars = np.searchsorted(_THRESHOLDS, logits[done:end] + rng.logistic(size=len(users)))
            labels[done:end] = stars > np.searchsorted(_THRESHOLDS, 0.0)
            seconds = world.joined_at[users] + rng.exponential(world.active_s[users])
            columns = [
                users + 1,
                world.movie_ids[movies],
                pa.array(_STARS).take(pa.array(stars)),
                seconds.astype(np.int64),
            ]
            pa_csv.write_csv(pa.table(columns, names=RATINGS_SCHEMA.names), stream, _PLAIN)
            done = end
            progress.update(done, num_rows, "ratings")
    truth = GeneratedTruth(
        best_auc=exact_auc(labels, logits),
        positive_rate=float(labels.mean()),
        num_users=len(world.rows_per_user),
        num_movies=len(world.movie_ids),
    )
    write_truth(directory, truth)
    return truth


def _make_world(num_rows: int, cardinality_scale: float, rng: np.random.Generator) -> _World:
    num_users, num_movies = (max(1, round(_between(num_rows, column) * cardinality_scale)) for column in (1, 2))
    num_users = min(num_users, num_rows // _MIN_ROWS_PER_USER)
    rows_per_user = long_tailed_counts(
        num_rows, num_users, rng, least=_MIN_ROWS_PER_USER, sd=_ACTIVITY_SD, most_over_mean=_MAX_OVER_MEAN
    )
    if rows_per_user.max() > num_movies:
        raise ConfigError(
            f"cardinality_scale {cardinality_scale} leaves {num_movies} movies, but one user rates "
            f"{rows_per_user.max()} different movies. Use a larger scale or fewer rows."
        )
    popularity = lognormal_shares(num_movies, _POPULARITY_SD, rng)
    genres = _draw_genres(num_movies, rng)
    activity = rows_per_user / num_rows
    taste = rng.normal(size=(num_users, genres.shape[1]))
    taste -= activity @ taste
    joined_at = rng.uniform(_FIRST_SECOND, _LAST_SECOND, num_users)
    active_s = 86_400.0 * 10 ** rng.uniform(-1, 3, num_users)
    return _World(
        rows_per_user=rows_per_user,
        popularity=popularity,
        movie_ids=np.cumsum(rng.integers(1, 6, num_movies)),
        genres=genres,
        bias=_scale(rng.normal(size=num_users), activity, _BIAS_SD),
        quality=_scale(rng.normal(size=num_movies), popularity, _QUALITY_SD),
        taste=taste * (_TASTE_SD / np.sqrt(np.mean(activity @ taste**2))),
        joined_at=joined_at,
        active_s=active_s,
    )


def _between(num_rows: int, column: int) -> int:
    """Return the number of users (column 1) or movies (column 2) for `num_rows` ratings, from a power law fitted to the
    two real datasets.
    """
    exponent = math.log(_LARGE[column] / _SMALL[column]) / math.log(_LARGE[0] / _SMALL[0])
    return round(_SMALL[column] * math.pow(num_rows / _SMALL[0], exponent))


def _draw_genres(num_movies: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Sample 1 to 6 distinct genres per movie in proportion to their weights, with the Gumbel top-k trick."""
    keys = np.log(list(_GENRES.values())) + rng.gumbel(size=(num_movies, len(_GENRES)))
    places = np.argsort(np.argsort(-keys, axis=1), axis=1)
    counts = 1 + rng.choice(len(_GENRES_PER_MOVIE), size=num_movies, p=_GENRES_PER_MOVIE)
    return places < counts[:, None]


def _scale(values: Floats, weights: Floats, deviation: float) -> Floats:
    centred = values - weights @ values
    scaled: Floats = centred * (deviation / np.sqrt(weights @ centred**2))
    return scaled


def _draw_pairs(world: _World, rng: np.random.Generator) -> Iterator[tuple[Ints, Ints]]:
    """Yield blocks of distinct (user, movie) indices, ordered by user and movie. No user spans two blocks."""
    ends = np.cumsum(world.rows_per_user)
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _ROWS_PER_BLOCK, side="right")))
        users, movies = _draw_distinct(world.rows_per_user[start:stop], world.popularity, rng)
        yield start + users, movies
        start = stop


def _draw_distinct(counts: Ints, popularity: Floats, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Sample `counts[u]` distinct movies for each user u, weighted by popularity.

    Duplicates are drawn again with increasingly flat popularities: a user who has seen the hits continues with the
    rest. This limits the number of rounds for users who rate thousands of movies.
    """
    num_movies, num_users = len(popularity), len(counts)
    pairs, missing, rounds = np.empty(0, dtype=np.int64), counts, 0
    while missing.any():
        rounds += 1
        cumulated = np.cumsum(popularity ** (1 / rounds))
        users = np.repeat(np.arange(num_users), missing)
        movies = np.searchsorted(cumulated[:-1], rng.random(len(users)) * cumulated[-1], side="right")
        pairs = sorted_distinct(np.concatenate((pairs, users * num_movies + movies)))
        missing = counts - np.bincount(pairs // num_movies, minlength=num_users)
    return pairs // num_movies, pairs % num_movies


def _logits(world: _World, users: Ints, movies: Ints) -> Floats:
    by_genre = world.genres / np.sqrt(world.genres.sum(axis=1, keepdims=True))
    total = np.zeros(len(users))
    for genre in range(by_genre.shape[1]):
        total += world.taste[users, genre] * by_genre[movies, genre]
    logits: Floats = world.bias[users] + world.quality[movies] + total
    return logits


def _write_movies(path: Path, world: _World, rng: np.random.Generator) -> None:
    num_movies = len(world.movie_ids)
    names = np.array(list(_GENRES))
    adjectives, nouns = rng.integers(len(_ADJECTIVES), size=num_movies), rng.integers(len(_NOUNS), size=num_movies)
    years = rng.integers(1920, 2020, num_movies)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(CATALOG_SCHEMA.names)
        for movie in range(num_movies):
            title = f"{_ADJECTIVES[adjectives[movie]]} {_NOUNS[nouns[movie]]}, The ({years[movie]})"
            writer.writerow([world.movie_ids[movie], title, "|".join(names[world.genres[movie]])])
