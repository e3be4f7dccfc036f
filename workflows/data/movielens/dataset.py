"""The MovieLens dataset of movie ratings, with the genres of each movie as a multi-hot column.

The graph follows NVIDIA's "Getting Started MovieLens" notebooks: genres are joined from the movies table, ids and
genres are encoded by `Categorify`, and ratings above 3 are positive. `MOVIELENS_HISTORY` is for models of each user's
rated movies, taken from the training rows (`training/models/factorization/bayesian_fm.py`); it adds the release year.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rankline.workflows.data.movielens.generator import generate_movielens
from rankline.workflows.data.movielens.reader import (
    GENRES,
    MOVIE_ID,
    MOVIELENS_ARCHIVES,
    RATING,
    TIMESTAMP,
    TITLE,
    USER_ID,
    read_movielens,
)
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.dataset import Dataset
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.targets import Head

if TYPE_CHECKING:
    import pyarrow as pa

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


_YEARS_TOGETHER = 4


def movielens_history_graph(raw: RawData, config: PrepareConfig, rows: RowsConfig) -> "nvt.Workflow":
    from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular

    assert raw.catalog is not None  # the reader always sets it
    years = raw.catalog.select([MOVIE_ID]).append_column("year", _years(raw.catalog)).to_pandas()
    with quiet_nvtabular():
        joined = [MOVIE_ID] >> ops.JoinExternal(years, on=[MOVIE_ID])
        year = joined["year"] >> ops.Categorify()
        return nvt.Workflow(movielens_graph(raw, config, rows).output_node + year)


def _years(catalog: "pa.Table") -> "pa.ChunkedArray":
    """Return release years as strings, rounded down to multiples of four, or "" for titles without a year."""
    found = pc.struct_field(pc.extract_regex(catalog[TITLE], r"\((?P<year>[0-9]{4})\)\s*$"), "year").cast("int64")
    together = pc.multiply(pc.divide(found, _YEARS_TOGETHER), _YEARS_TOGETHER)
    return pc.fill_null(together.cast("string"), "")


MOVIELENS_HISTORY = replace(MOVIELENS, name="movielens-history", graph=movielens_history_graph)
