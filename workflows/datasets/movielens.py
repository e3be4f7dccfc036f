"""MovieLens: ratings of movies, and the genres of each movie as a multi-hot column.

The graph follows NVIDIA's "Getting Started MovieLens" notebooks: genres joined from the movies table, ids and genres
categorified, a rating above 3 is a positive.
"""

from pathlib import Path

from workflows.datasets.base import Dataset, PrepareConfig
from workflows.datasets.movielens_files import MOVIELENS_ARCHIVES, read_movielens
from workflows.datasets.movielens_generator import generate_movielens
from workflows.datasets.raw import RawData
from workflows.operators import GreaterThan, HashedCategorify, NullToEmptyList
from workflows.progress import Progress
from workflows.upstream import nvt, ops, quiet_nvtabular

_POSITIVE_ABOVE = 3.0


def movielens_graph(raw: RawData, config: PrepareConfig) -> nvt.Workflow:
    """The workflow that encodes ratings; its inputs are userId, movieId and rating."""
    movies = raw.catalog.select(["movieId", "genres"]).to_pandas()
    with quiet_nvtabular():
        if config.hash_buckets:
            encode_ids = HashedCategorify(freq_threshold=config.frequency_threshold, num_buckets=config.hash_buckets)
        else:
            encode_ids = ops.Categorify(freq_threshold=config.frequency_threshold)
        ids = ["userId", "movieId"] >> encode_ids
        joined = ["movieId"] >> ops.JoinExternal(movies, on=["movieId"])
        genres = joined["genres"] >> NullToEmptyList() >> ops.Categorify()
        label = ["rating"] >> GreaterThan(_POSITIVE_ABOVE)
        return nvt.Workflow(ids + genres + label)


def _generate(directory: Path, *, num_rows: int, seed: int, progress: Progress) -> float:
    return generate_movielens(directory, num_rows=num_rows, seed=seed, progress=progress).best_auc


MOVIELENS = Dataset(
    name="movielens",
    read=read_movielens,
    generate=_generate,
    graph=movielens_graph,
    inputs=("userId", "movieId"),
    label="rating",
    time="timestamp",
    group_by="userId",
    item="movieId",
    archives=MOVIELENS_ARCHIVES,
)
