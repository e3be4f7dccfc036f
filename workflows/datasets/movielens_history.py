"""MovieLens with what each user rated: a row is a movie to score, and the training ratings of its user.

Genres and year of release belong to the movie to score and to each rated one alike, and share their vocabularies. A
request holds userId and movieId; histories, genres and years are looked up.
"""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from workflows.datasets.base import Dataset, RatedColumns
from workflows.datasets.movielens import MOVIELENS, POSITIVE_ABOVE
from workflows.datasets.movielens_files import GENRES, MOVIE_ID, RATING, TIMESTAMP, TITLE, USER_ID
from workflows.datasets.raw import RawData
from workflows.encodings import RatedRowsConfig
from workflows.feature_spec import GRADE_SUFFIX, HISTORY_SUFFIX, TARGET_SUFFIX
from workflows.prepare_config import PrepareConfig

if TYPE_CHECKING:
    import pandas as pd

    from workflows.upstream import nvt

_COLUMNS = RatedColumns(user=USER_ID, item=MOVIE_ID, grade=RATING, time=TIMESTAMP)
_MOVIE, _RATED = MOVIE_ID + TARGET_SUFFIX, MOVIE_ID + HISTORY_SUFFIX
_GRADES = RATING + GRADE_SUFFIX
_YEAR, _NUM_GENRES = "year", 3
_YEARS_TOGETHER = 4
_NONE = ""


def movielens_history_graph(raw: RawData, config: PrepareConfig, rows: RatedRowsConfig) -> "nvt.Workflow":
    """The workflow that encodes ratings with the user's rated movies; its inputs are userId, movieId and rating."""
    from workflows.item_attributes import ItemAttributes, SharedCategorify
    from workflows.operators import GreaterThan, NullToEmptyList
    from workflows.upstream import nvt, ops, quiet_nvtabular
    from workflows.user_histories import training_rows, user_histories

    assert raw.catalog is not None  # its reader always has one
    histories = user_histories(
        training_rows(raw, rows, _COLUMNS), _COLUMNS, rows.max_history, items=_RATED, grades=_GRADES
    )
    movies = _movies(raw.catalog)
    attributes = [name for name in movies.columns if name != MOVIE_ID]
    with quiet_nvtabular():
        joined = [USER_ID] >> ops.JoinExternal(histories, on=[USER_ID])
        movie = [MOVIE_ID] >> ops.Rename(name=_MOVIE)
        rated = joined[_RATED] >> NullToEmptyList()
        ids = movie + rated + [USER_ID] >> SharedCategorify(
            {_RATED: _MOVIE}, freq_threshold=config.frequency_threshold, num_buckets=max(1, config.hash_buckets)
        )
        known = movie + rated >> ItemAttributes(movies, MOVIE_ID, dict.fromkeys(attributes, _NONE))
        described = known >> SharedCategorify({name + HISTORY_SUFFIX: name + TARGET_SUFFIX for name in attributes})
        grades = joined[_GRADES] >> NullToEmptyList() >> ops.Categorify()
        label = [RATING] >> GreaterThan(POSITIVE_ABOVE)
        return nvt.Workflow(ids + described + grades + label)


def _movies(catalog: pa.Table) -> "pd.DataFrame":
    """Movie, years of release together, and its first genres one by one; "" for what a movie lacks."""
    years = pc.struct_field(pc.extract_regex(catalog[TITLE], r"\((?P<year>[0-9]{4})\)\s*$"), "year").cast(pa.int64())
    together = pc.multiply(pc.divide(years, _YEARS_TOGETHER), _YEARS_TOGETHER)
    columns = {MOVIE_ID: catalog[MOVIE_ID], _YEAR: pc.fill_null(together.cast(pa.string()), _NONE)}
    genres = catalog[GENRES].to_pylist()
    for place in range(_NUM_GENRES):
        found = [names[place] if names and len(names) > place else _NONE for names in genres]
        columns[f"genre_{place + 1}"] = pa.chunked_array([pa.array(found, pa.string())])
    return pa.table(columns).to_pandas()


MOVIELENS_HISTORY = Dataset(
    name="movielens-history",
    read=MOVIELENS.read,
    generate=MOVIELENS.generate,
    graph=movielens_history_graph,
    inputs=MOVIELENS.inputs,
    heads=MOVIELENS.heads,
    time=MOVIELENS.time,
    group_by=MOVIELENS.group_by,
    item=MOVIELENS.item,
    rated=_COLUMNS,
    archives=MOVIELENS.archives,
)
