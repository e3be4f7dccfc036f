"""MovieLens: ratings of movies, and the genres of each movie as a multi-hot column.

The graph follows NVIDIA's "Getting Started MovieLens" notebooks: genres are joined from the movies table, ids and
genres are encoded by `Categorify`, and ratings above 3 are positive.
"""

from typing import TYPE_CHECKING

from rankline.workflows.data.movielens.generator import generate_movielens
from rankline.workflows.data.movielens.reader import (
    GENRES,
    MOVIE_ID,
    MOVIELENS_ARCHIVES,
    RATING,
    TIMESTAMP,
    USER_ID,
    read_movielens,
)
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import Head

if TYPE_CHECKING:
    from rankline.workflows.nvt.compat import nvt

POSITIVE_ABOVE = 3.0
"""Ratings above this number of stars are positive."""


def movielens_graph(raw: RawData, config: PrepareConfig, _rows: RowsConfig) -> "nvt.Workflow":
    from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular
    from rankline.workflows.nvt.operators import GreaterThan, HashedCategorify, NullToEmptyList

    assert raw.catalog is not None  # the reader always sets it
    movies = raw.catalog.select([MOVIE_ID, GENRES]).to_pandas()
    with quiet_nvtabular():
        if config.hash_buckets:
            encode_ids = HashedCategorify(freq_threshold=config.frequency_threshold, num_buckets=config.hash_buckets)
        else:
            encode_ids = ops.Categorify(freq_threshold=config.frequency_threshold)
        ids = [USER_ID, MOVIE_ID] >> encode_ids
        joined = [MOVIE_ID] >> ops.JoinExternal(movies, on=[MOVIE_ID])
        genres = joined[GENRES] >> NullToEmptyList() >> ops.Categorify()
        label = [RATING] >> GreaterThan(POSITIVE_ABOVE)
        return nvt.Workflow(ids + genres + label)


MOVIELENS = Dataset(
    name="movielens",
    read=read_movielens,
    generate=generate_movielens,
    graph=movielens_graph,
    inputs=(USER_ID, MOVIE_ID),
    heads=(Head(RATING),),
    time=TIMESTAMP,
    group_by=USER_ID,
    item=MOVIE_ID,
    archives=MOVIELENS_ARCHIVES,
)
