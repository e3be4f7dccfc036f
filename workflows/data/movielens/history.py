"""MovieLens for models of each user's rated movies: like `movielens`, plus the year of release.

The rated movies are not a column; the model takes them from the training rows
(`training/models/factorization/bayesian_fm`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from rankline.workflows.data.movielens.dataset import MOVIELENS, movielens_graph
from rankline.workflows.data.movielens.reader import MOVIE_ID, TITLE
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.raw import RawData

if TYPE_CHECKING:
    import pyarrow as pa

    from rankline.workflows.nvt.compat import nvt

_YEAR = "year"
_YEARS_TOGETHER = 4
_NONE = ""


def movielens_history_graph(raw: RawData, config: PrepareConfig, rows: RowsConfig) -> "nvt.Workflow":
    from rankline.workflows.nvt.compat import nvt, ops, quiet_nvtabular

    assert raw.catalog is not None  # the reader always sets it
    years = raw.catalog.select([MOVIE_ID]).append_column(_YEAR, _years(raw.catalog)).to_pandas()
    with quiet_nvtabular():
        joined = [MOVIE_ID] >> ops.JoinExternal(years, on=[MOVIE_ID])
        year = joined[_YEAR] >> ops.Categorify()
        return nvt.Workflow(movielens_graph(raw, config, rows).output_node + year)


def _years(catalog: "pa.Table") -> "pa.ChunkedArray":
    """Return years of release in groups of four, as texts; "" if the title has none."""
    found = pc.struct_field(pc.extract_regex(catalog[TITLE], r"\((?P<year>[0-9]{4})\)\s*$"), "year").cast("int64")
    together = pc.multiply(pc.divide(found, _YEARS_TOGETHER), _YEARS_TOGETHER)
    return pc.fill_null(together.cast("string"), _NONE)


MOVIELENS_HISTORY = replace(MOVIELENS, name="movielens-history", graph=movielens_history_graph)
