"""What the graph looks up of movies, in NVTabular and compiled; and that no column knows a label."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankline.workflows.compiler.compile import compile_workflow
from rankline.workflows.core.errors import DataError
from rankline.workflows.data.auc import exact_auc
from rankline.workflows.data.movielens.dataset import MOVIELENS_HISTORY
from rankline.workflows.data.movielens.reader import CATALOG_SCHEMA, RATINGS_SCHEMA
from rankline.workflows.nvt.compat import nvt, quiet_nvtabular
from rankline.workflows.preprocess import RowsConfig
from rankline.workflows.preprocess.config import PrepareConfig
from rankline.workflows.preprocess.prepare import prepare
from rankline.workflows.preprocess.prepared_data import PreparedData
from rankline.workflows.preprocess.raw import RawData
from rankline.workflows.schema.feature_spec import FIRST_UNSEEN_ID
from rankline.workflows.schema.ragged import Padded
from tests.oracles.nvtabular import transformed

MANY, ONE, NOBODY = 1, 2, 999
NO_TITLE, NO_YEAR, UNKNOWN_MOVIE = 101, 102, 999_999


def raw_of(users: Any, movies: Any, stars: Any) -> RawData:
    rows = pa.table([users, movies, np.asarray(stars, np.float32), np.arange(len(users))], schema=RATINGS_SCHEMA)
    titles = [None if movie == NO_TITLE else "Nameless" if movie == NO_YEAR else "A (1994)" for movie in range(1, 5001)]
    genres = [["Drama", "War"] if movie % 2 else ["War"] if movie % 4 else [] for movie in range(1, 5001)]
    catalog = pa.table([np.arange(1, 5001), titles, genres], schema=CATALOG_SCHEMA)
    return RawData(rows=rows, catalog=catalog, fingerprint="")


def odd_raw() -> RawData:
    """A user who rated 3,000 movies, one who rated one, and others."""
    rng = np.random.default_rng(0)
    users = np.repeat([MANY, ONE, *range(3, 43)], [3000, 1, *[10] * 40])
    movies = np.concatenate([np.arange(1, 3001), [NO_TITLE], *(rng.permutation(200)[:10] + 1 for _ in range(40))])
    return raw_of(users, movies, rng.integers(1, 11, len(users)) / 2)


def prepared_at(path: Path, raw: RawData) -> PreparedData:
    return prepare(MOVIELENS_HISTORY, raw, path, PrepareConfig(), RowsConfig(), source="a test")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return prepared_at(tmp_path_factory.mktemp("odd") / "prepared", odd_raw())


def test_row_has_its_ids_its_genres_and_a_year_and_a_request_its_ids(prepared: PreparedData) -> None:
    assert {name: set(members) for name, members in prepared.spec.channels.items()} == {
        "categorical": {"userId", "movieId", "genres", "year"},
        "continuous": set(),
        "label": {"rating"},
    }
    assert prepared.inputs == ("userId", "movieId")
    assert (prepared.group_by, prepared.item) == ("userId", "movieId")


def test_plan_looks_up_what_nvtabular_joins_whoever_asks_for_whatever(prepared: PreparedData) -> None:
    workflow = _served(prepared)
    users = np.array([MANY, ONE, 3, NOBODY, MANY])
    movies = np.array([5, NO_TITLE, NO_YEAR, UNKNOWN_MOVIE, 4999])
    expected = transformed(workflow, pd.DataFrame({"userId": users, "movieId": movies}))
    served = compile_workflow(workflow).run({"userId": users, "movieId": movies}, {})
    assert {name: _as_lists(column) for name, column in served.items()} == expected
    years = expected["year"]
    assert years[0] == years[4]
    assert years[1] == years[2] != years[0]  # no title, and a title without a year
    assert expected["userId"][3] == FIRST_UNSEEN_ID


def test_ratings_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    users = np.repeat(np.arange(20), 10)
    with pytest.raises(DataError, match="every label of the train rows is 1.0"):
        prepared_at(tmp_path / "prepared", raw_of(users, np.tile(np.arange(1, 11), 20), np.full(200, 4.0)))


def test_no_column_knows_a_label_that_is_noise(tmp_path: Path) -> None:
    """10,000 validation rows: the AUC of noise has a deviation of 0.0058, so 0.02 is 3.5 of them. All columns together,
    with what each user rated: `tests/unit/training/models/factorization/test_bayesian_fm.py`."""
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(2500), 20)
    movies = rng.permuted(np.tile(np.arange(1, 301), (2500, 1)), axis=1)[:, :20].ravel()
    raw = raw_of(users, movies, np.where(rng.random(50_000) < 0.5, 3.0, 4.0))
    made = prepared_at(tmp_path / "prepared", raw)
    train, valid = (
        pd.concat([pq.read_table(made.path / file).to_pandas() for file in made.spec.source(split).files])
        for split in ("train", "valid")
    )
    assert len(valid) == 10_000
    for name in (name for name in train.columns if name != "rating"):
        # A list by its mean; a column by what training says of its values, as a model would learn it.
        known, asked = (
            frame[name].map(lambda ids: np.append(ids, 0).mean()) if made.spec[name].is_list else frame[name]
            for frame in (train, valid)
        )
        means = train["rating"].groupby(known.to_numpy()).mean()
        of_values = asked.map(means).fillna(0.5).to_numpy()
        for scores in (of_values, asked.to_numpy(dtype=np.float64, na_value=0.0)):
            assert exact_auc(valid["rating"].to_numpy() > 0, np.nan_to_num(scores)) == pytest.approx(0.5, abs=0.02), (
                name
            )


def _served(prepared: PreparedData) -> nvt.Workflow:
    with quiet_nvtabular():
        return prepared.workflow().remove_inputs(["rating"])


def _as_lists(column: Any) -> list[Any]:
    if not isinstance(column, Padded):
        return column.tolist()  # type: ignore[no-any-return]
    lists = column.ragged()
    return [lists.values[a:b].tolist() for a, b in pairwise(lists.offsets)]


def test_histories_of_users_are_kept_beside_the_rows(prepared: PreparedData) -> None:
    histories = prepared.histories()
    assert histories is not None
    owned = dict(zip(histories["userId"].to_pylist(), histories["movieId"].to_pylist(), strict=True))
    assert owned[MANY] == list(range(1, 3001))
    assert owned[ONE] == [NO_TITLE]
    assert len(owned) == 42
